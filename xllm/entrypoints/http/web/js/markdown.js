// Markdown of an untrusted author, rendered while it grows.
//
// Three walls against what a model may write: raw HTML is shown as text, everything that marked
// makes passes DOMPurify with a short list of tags, and the page's policy runs no foreign script.

import DOMPurify from "../vendor/dompurify.js";
import hljs from "../vendor/highlight.js";
import { Marked } from "../vendor/marked.js";
import { copy, h, icon } from "./dom.js";

const PURIFY = {
  ALLOWED_TAGS: [
    "p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code",
    "em", "strong", "del", "a", "table", "thead", "tbody", "tr", "th", "td", "span", "input",
  ],
  ALLOWED_ATTR: ["href", "title", "start", "align", "class", "type", "checked", "disabled"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const escape = (text) =>
  text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => escape(text),
    // An image would be fetched from wherever the model says; a link is not.
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
  },
});

/** A fragment of safe nodes. */
function sanitize(html) {
  const fragment = DOMPurify.sanitize(html, PURIFY);
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  for (const box of fragment.querySelectorAll("input")) {
    if (box.type === "checkbox") box.disabled = true;
    else box.remove();
  }
  return fragment;
}

function codeBlock(text, language) {
  const known = hljs.getLanguage(language);
  const code = h("code");
  if (known) code.append(sanitize(hljs.highlight(text, { language, ignoreIllegals: true }).value));
  else code.append(text);
  const button = h("button", { type: "button", onclick: () => copy(button, text) }, icon("copy"), "Copy");
  return h("div", { class: "code-block" },
    h("div", { class: "bar" }, h("span", {}, language || "text"), button),
    h("pre", { tabindex: "0" }, code));
}

function block(token, links) {
  const tokens = Object.assign([token], { links });
  const element = h("div");
  element.append(sanitize(marked.parser(tokens)));
  for (const code of element.querySelectorAll("pre > code")) {
    const language = /language-([\w+#.-]+)/.exec(code.className)?.[1] ?? "";
    code.parentElement.replaceWith(codeBlock(code.textContent.replace(/\n$/, ""), language));
  }
  return element;
}

/** Shows a text that only grows at its end: blocks that are complete are not made again. */
export class MarkdownView {
  constructor() {
    this.element = h("div", { class: "markdown" });
    this._sources = [];
  }

  update(text) {
    const tokens = marked.lexer(text);
    const shown = tokens.filter((token) => token.type !== "space" && token.type !== "def");
    let same = 0;
    while (same < shown.length && this._sources[same] === shown[same].raw) same += 1;
    while (this.element.children.length > same) this.element.lastElementChild.remove();
    for (const token of shown.slice(same)) this.element.append(block(token, tokens.links));
    this._sources = shown.map((token) => token.raw);
  }
}
