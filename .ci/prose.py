"""Counts phrases and long sentences that our style avoids, in pages, messages and docstrings.

Prints all places, as advice: the exit code is 0.
"""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
KINDS = ("pages", "messages", "docstrings", "beginnings", "types")
MOST_WORDS = 30
AVOIDED = re.compile(
    r"\balone\b|\bbeside\b|\banew\b|\bin turns\b|\bgoes? with\b|\bhow probable\b"
    r"|\b(?:sentence|line|pair|text|token)s? a (?:line|second|batch|side)\b"
    # Pronouns without a noun, and a plain "not" that is hidden in "is no".
    r"|\b(?:that|those) of\b|\blikewise\b|\bso many\b|\bhas none of\b|\bshall\b"
    r"|\bstands? (?:in|before|behind|under|next)\b"
    r"|\bthe ones? of\b|\bmeans? nothing\b|\bat hand\b|\bgoes on\b"
    r"|(?<!there )\b(?:is|are|was|were) no (?!longer\b|more\b)(?:such )?[a-z]+",
    flags=re.IGNORECASE,
)
BUILT = {"_build", "_live", "_work", "_build_quick", "reference"}


# A docstring begins with a verb or the name of the thing, not with a question about it.
NO_BEGINNING = re.compile(r"(?:What|How|Which|Whether|As|The same|That|Those|Of|From)\b[^\n]*")
# An argument's description that names only its type.
ONLY_TYPE = re.compile(r"^ +\w+: (?:An? |The )?`[\w.]+`\.$", flags=re.MULTILINE)


def faults(text: str) -> list[str]:
    """Returns the avoided phrases and the long sentences of a text."""
    sentences = re.split(r"(?<=[.!?])[)\"”]?\s+", " ".join(text.split()))
    long = [sentence for sentence in sentences if len(sentence.split()) > MOST_WORDS]
    return AVOIDED.findall(text) + long


def blocks(markdown: str) -> list[str]:
    """Returns paragraphs, list items and table cells of Markdown, without code and link targets."""
    # What programs made of messages and docstrings is counted there.
    made = r"^<!-- (?:features|output)\b[^\n]*-->$.*?^<!-- end -->$"
    text = re.sub(made, "\n", markdown, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ *(```+).*?^ *\1 *$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->|<[^>\n]*>|\$\$.*?\$\$", " ", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^(#|\s*[-*] |\s*\d+\. )", r"\n\1", text, flags=re.MULTILINE)
    text = re.sub(
        r"^\|.*$", lambda row: "\n" + row[0].replace("|", "\n\n") + "\n", text, flags=re.M
    )
    return [" ".join(block.split()) for block in re.split(r"\n\s*\n", text) if block.strip()]


def pages() -> dict[str, list[str]]:
    """Returns the text blocks of each page, template and recipe."""
    paths = [
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "PLATFORM_NOTES.md", "CHANGELOG.md")
    ]
    for top in ("docs", "training", "export", "keras_transformer"):
        paths += (ROOT / top).rglob("*.md")
    texts = {path: path.read_text("utf-8") for path in paths if not BUILT & set(path.parts)}
    read = {path: blocks(text) for path, text in texts.items()}
    # reference.yaml is made of the package's messages, which are counted there.
    recipes = set((ROOT / "training" / "recipes").glob("*.yaml"))
    for path in recipes - {ROOT / "training" / "recipes" / "reference.yaml"}:
        comments = re.findall(r"^ *#(.*)$|^$", path.read_text("utf-8"), flags=re.MULTILINE)
        read[path] = blocks("\n".join(comment.strip() for comment in comments))
    return {str(path.relative_to(ROOT)): texts for path, texts in sorted(read.items())}


def _text_of(node: ast.JoinedStr | ast.Constant) -> str:
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "code" for part in node.values)
        return "".join(parts)
    return node.value if isinstance(node.value, str) else ""


def package() -> tuple[dict[str, list[str]], ...]:
    """Returns texts of each module: messages, docstrings, beginnings and types to avoid in them.

    Messages are all strings of several words that are not docstrings.
    """
    messages, docstrings, beginnings, types = {}, {}, {}, {}
    for path in sorted((ROOT / "keras_transformer").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
        documentation = [text for node in nodes if (text := ast.get_docstring(node))]
        attributes = [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)
        ]  # Docstrings are expressions, those of attributes too.
        skipped = {id(value) for value in attributes}
        strings = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in skipped
        ]
        inside = {id(part) for node in strings for part in getattr(node, "values", [])}
        joined = [_text_of(node) for node in strings if id(node) not in inside]
        name = str(path.relative_to(ROOT))
        messages[name] = [text for text in joined if text.count(" ") > 1]
        docstrings[name] = [block for text in documentation for block in blocks(text)]
        found = map(NO_BEGINNING.match, documentation)
        beginnings[name] = [match[0] for match in found if match]
        types[name] = [row.strip() for text in documentation for row in ONLY_TYPE.findall(text)]
    return messages, docstrings, beginnings, types


def counts() -> dict[str, list[tuple[str, str]]]:
    """Returns `(place, fault)` of every fault, by kind of text."""
    kinds = dict(zip(KINDS, (pages(), *package()), strict=True))
    return {
        kind: [
            (path, fault)
            for path, texts in read.items()
            for text in texts
            for fault in ([text] if kind in ("beginnings", "types") else faults(text))
        ]
        for kind, read in kinds.items()
    }


if __name__ == "__main__":
    for kind, faults in counts().items():
        print(f"{kind}: {len(faults)}", *(f"  {path}: {fault}" for path, fault in faults), sep="\n")
