// Puts the translator in the place of its picture on the first page, if the site was built with it.
document.addEventListener("DOMContentLoaded", async () => {
  const picture = document.querySelector('img[src$="/translator.png"]');
  if (!picture) return;
  const response = await fetch("translator/index.html", { method: "HEAD" }).catch(() => null);
  if (!response?.ok) return;
  const frame = document.createElement("iframe");
  Object.assign(frame, { id: "translator", title: "Translator", className: "shown" });
  frame.src = "translator/index.html";
  picture.closest("p").nextElementSibling.remove(); // the reason for a picture
  picture.replaceWith(frame);
});
