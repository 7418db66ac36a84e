"""Every option of the server is one of the command, with the same default."""

from keras_transformer.cli.main import run
from keras_transformer.cli.parser import Parser
from keras_transformer.cli.serve import COMMANDS
from keras_transformer.extras.serving import LocalOptions, ServerOptions


def test_every_option_of_the_server_is_an_option_of_the_command():
    parser = Parser()
    add_options, _ = COMMANDS["serve"]
    add_options(parser)
    text = " ".join(parser.format_help().split())
    declared = {**LocalOptions.model_fields, **ServerOptions.model_fields}
    del declared["model"]
    for name, field in declared.items():
        assert f"--{name.replace('_', '-')} " in text
        assert " ".join(field.description.split()) in text
        if field.default is not None:
            assert f"default: {field.default}" in text


def test_options_reach_the_server_and_mistakes_end_with_2(monkeypatch, tmp_path, capsys):
    calls, name = [], "keras_transformer.extras.serving.serve_here"
    monkeypatch.setattr(name, lambda *values: calls.append(values))
    command = ["serve", "--model", "m", "--max-batch-size", "7"]
    assert run([*command, "--set", "batch_wait_ms=1.5", "--set", "max_sentences=3"]) == 0
    options = ServerOptions(model="m", max_batch_size=7, batch_wait_ms=1.5, max_sentences=3)
    assert calls == [(options, LocalOptions())]
    assert run(["serve", "--model", "m", "--processes", "0"]) == 2
    assert "`--processes` must be a positive integer" in capsys.readouterr().err


def test_serve_run_may_give_every_option_as_text():
    texts = {"threads": "4", "replicas": "auto", "batch_wait_ms": "1.5", "version": "2"}
    from keras_transformer.extras.cluster import ClusterOptions

    options = ClusterOptions.model_validate({"model": "m", **texts})  # As Ray makes them.
    typed = ClusterOptions(model="m", threads=4, replicas="auto", batch_wait_ms=1.5, version=2)
    assert options == typed


def test_bulk_options_go_with_the_ray_engine_alone(capsys):
    assert run(["translate", "--model", "m", "--workers", "2"]) == 2
    assert "`--workers` needs --engine ray" in capsys.readouterr().err
    assert run(["translate", "--model", "m", "--engine", "ray", "a"]) == 2
    assert "needs --output" in capsys.readouterr().err
    assert run(["translate", "--model", "m", "--engine", "ray", "--n-best", "2"]) == 2
    assert "`--n-best` is not allowed with --engine ray" in capsys.readouterr().err
