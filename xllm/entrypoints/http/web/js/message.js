// One message on the page.

import { copy, h, iconButton } from "./dom.js";
import { MarkdownView } from "./markdown.js";

/** What the user asked, with a button to edit it. `edited` gets the new text. */
export function questionView(message, { edited }) {
  const text = h("div", { class: "text" }, message.content);
  const tools = h("div", { class: "tools" });
  const element = h("li", { class: "message user", "aria-label": "You" }, text, tools);

  const showText = () => element.replaceChildren(text, tools);
  const edit = () => {
    const area = h("textarea", { rows: 3, "aria-label": "Edit the message" });
    area.value = message.content;
    const send = () => {
      if (area.value.trim()) edited(area.value.trim());
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        showText();
      }
    });
    element.replaceChildren(h("div", { class: "editor" }, area,
      h("div", { class: "bar" },
        h("button", { type: "button", onclick: showText }, "Cancel"),
        h("button", { type: "button", class: "primary", onclick: send }, "Send"))));
    area.focus();
  };
  tools.append(
    iconButton("copy", "Copy the message", (event) => copy(event.currentTarget, message.content)),
    iconButton("edit", "Edit the message", edit));
  return element;
}

/** An answer, which `update` shows as far as it has come. */
export class AnswerView {
  constructor(message, { regenerate }) {
    this._message = message;
    this._markdown = new MarkdownView();
    this._thoughts = new MarkdownView();
    this._thoughts.element.classList.add("inside");
    this._summary = h("summary");
    this._reasoning = h("details", { class: "folded reasoning", hidden: true }, this._summary, this._thoughts.element);
    this._calls = h("div");
    this._problem = h("p", { class: "problem", role: "alert", hidden: true });
    this._figures = h("span", { class: "figures" });
    this._tools = h("div", { class: "tools" },
      iconButton("copy", "Copy the answer", (event) => copy(event.currentTarget, message.content)),
      iconButton("redo", "Regenerate the answer", regenerate),
      this._figures);
    this.element = h("li", { class: "message assistant", "aria-label": message.model ?? "Answer" },
      this._reasoning, this._markdown.element, this._calls, this._problem, this._tools);
  }

  update(streaming) {
    const message = this._message;
    const empty = !message.content && !message.toolCalls?.length;
    this.element.classList.toggle("streaming", streaming && !empty);
    this.element.classList.toggle("waiting", streaming && empty);
    this.element.setAttribute("aria-busy", String(streaming));
    this._markdown.update(message.content);
    this._reasoning.hidden = !message.reasoning;
    if (message.reasoning) {
      this._thoughts.update(message.reasoning);
      const seconds = message.thoughtSeconds;
      this._summary.textContent = seconds == null ? "Thinking…" : `Thought for ${seconds.toFixed(1)} s`;
    }
    this._showCalls(message.toolCalls ?? [], streaming);
    this._problem.hidden = !message.error;
    this._problem.textContent = message.error ?? "";
    this._tools.hidden = streaming;
    this._figures.textContent = figuresText(message);
  }

  _showCalls(calls, streaming) {
    this._calls.replaceChildren(...calls.map((call) =>
      h("details", { class: "folded tool-call", open: true },
        h("summary", {}, `Calls ${call.name || "a tool"}`),
        h("pre", { class: "inside" }, streaming ? call.arguments : pretty(call.arguments)))));
  }
}

function figuresText({ figures, stopped, finish }) {
  const parts = [];
  if (figures?.tokensPerSecond) parts.push(`${figures.tokensPerSecond.toFixed(1)} tokens/s`);
  if (figures?.ttftSeconds != null) parts.push(`first after ${duration(figures.ttftSeconds)}`);
  if (figures?.tokens) parts.push(`${figures.tokens} tokens`);
  if (stopped) parts.push("stopped");
  if (finish === "length") parts.push("cut at the token limit");
  return parts.join(" · ");
}

function duration(seconds) {
  return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`;
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}
