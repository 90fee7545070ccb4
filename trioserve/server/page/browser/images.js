"use strict";

// Images that are sent with a question.

const attached = [];

function readFile(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve({ name: file.name || "image", url: reader.result });
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

async function attach(files) {
  if (byId("attach").hidden) return;
  const images = [...files].filter((each) => each.type.startsWith("image/"));
  attached.push(...await Promise.all(images.map(readFile)));
  showAttached();
}

function makePicture({ name, url }) { return make("img", { src: url, alt: name }); }

function showAttached() {
  byId("attached").hidden = !attached.length;
  byId("attached").replaceChildren(...attached.map((each) => {
    const remove = make("button", { type: "button", className: "quiet", "aria-label": `Remove ${each.name}` }, "Remove");
    remove.addEventListener("click", () => {
      attached.splice(attached.indexOf(each), 1);
      showAttached();
      byId("prompt").focus();
    });
    return make("li", {}, makePicture(each), remove);
  }));
}

byId("attach").addEventListener("click", () => byId("file").click());
byId("file").addEventListener("change", async () => {
  await attach(byId("file").files);
  byId("file").value = "";
  byId("prompt").focus();
});
byId("prompt").addEventListener("paste", (event) => attach(event.clipboardData.files));
byId("chat").addEventListener("dragover", (event) => event.preventDefault());
byId("chat").addEventListener("drop", (event) => { event.preventDefault(); attach(event.dataTransfer.files); });
