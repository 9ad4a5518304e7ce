// The chat page: which conversation is shown, what the keys do, who calls whom.

import { models } from "./api.js";
import { byId, drawIcons, h, iconButton } from "./dom.js";
import { Generation } from "./generation.js";
import { AnswerView, questionView } from "./message.js";
import { connectSettings, connectThemeButton } from "./preferences.js";
import * as store from "./store.js";

const SUGGESTIONS = [
  "Explain how a KV cache makes decoding fast.",
  "Write a Python function that merges two sorted lists.",
  "Give me three ideas for a rainy afternoon.",
  "What is the capital of France, and why is it there?",
];
// Why a model of each other task cannot chat, and what it can do.
const OTHER_TASKS = {
  generate: "it has no chat template (--chat-template gives it one). It continues texts: /v1/completions.",
  embed: "it turns texts into vectors. Vectors: /v1/embeddings; pairs of texts: /v1/rerank, /v1/score.",
  classify: "it labels texts: /v1/classify; with one label it scores pairs: /v1/rerank, /v1/score.",
};
const CODE = /((?:\/v1\/|--)[\w-]+)/;
const MODEL = "xllm.model";
const CURRENT = "xllm.conversation";
const PAINT_MS = 50; // least time between two renderings of a growing answer
const KEEP_MS = 2000;
const NEAR_END_PX = 80;

let conversation = store.newConversation();
let generation = null;
let untitled = "New chat";
let chats = true;

const scroll = byId("scroll");
const prompt = byId("prompt");
const openSettings = connectSettings({
  changed: loadModels,
  forget: async () => {
    generation?.stop();
    await store.removeAll();
    show(store.newConversation());
  },
});

// --- the conversation ---------------------------------------------------------------------------

function show(next) {
  if (generation && next.id !== conversation.id) generation.stop();
  conversation = next;
  sessionStorage.setItem(CURRENT, conversation.id);
  byId("title").textContent = conversation.title || untitled;
  document.title = conversation.title ? `${conversation.title} · xLLM` : "xLLM";
  byId("welcome").hidden = conversation.messages.length > 0;
  byId("messages").replaceChildren(...conversation.messages.map(messageView));
  document.body.classList.remove("listing");
  toEnd();
  showList();
}

function messageView(message, index) {
  if (message.role === "user") {
    return questionView(message, { edited: (text) => ask(text, index) });
  }
  const view = new AnswerView(message, { regenerate: () => answer(index) });
  view.update(false);
  return view.element;
}

async function showList() {
  const all = await store.list();
  byId("conversations").replaceChildren(...all.map((each) =>
    h("li", { class: each.id === conversation.id ? "current" : "" },
      h("button", {
        class: "name",
        "aria-current": each.id === conversation.id ? "true" : null,
        onclick: () => show(each.id === conversation.id ? conversation : each),
      }, each.title || "New chat"),
      iconButton("trash", `Delete “${each.title}”`, () => remove(each)))));
}

async function remove(each) {
  if (!confirm(`Delete “${each.title}”?`)) return;
  if (each.id === conversation.id) generation?.stop();
  await store.remove(each.id);
  if (each.id === conversation.id) startNew();
  else showList();
}

function startNew() {
  show(store.newConversation());
  prompt.focus();
}

// --- asking and answering -------------------------------------------------------------------------

/** Puts a question in place `index` (what followed goes) and asks for its answer. */
function ask(text, index = conversation.messages.length) {
  if (generation || !chats) return;
  conversation.messages.length = index;
  conversation.messages.push({ role: "user", content: text });
  conversation.title ||= text.replace(/\s+/g, " ").slice(0, 80);
  answer(index + 1);
}

/** Makes message `index` (what followed goes) a new answer to those before it. */
async function answer(index) {
  if (generation) return;
  const asked = conversation;
  const message = { role: "assistant", content: "", model: byId("model").value };
  const own = (generation = new Generation(message));
  asked.messages.length = index;
  asked.updated = Date.now();
  await store.save(asked);
  show(asked);
  setBusy(true);
  const view = new AnswerView(message, { regenerate: () => answer(index) });
  byId("messages").append(view.element);
  view.update(true);
  toEnd();

  const painter = new Painter(() => {
    const follow = nearEnd();
    view.update(true);
    if (follow) toEnd();
  });
  const history = asked.messages.slice();
  asked.messages.push(message);
  const keeper = setInterval(() => store.save(asked), KEEP_MS); // a reload loses no more than that
  await own.run(message.model || undefined, history, () => painter.request());
  clearInterval(keeper);
  painter.cancel();
  generation = null;
  const follow = nearEnd();
  view.update(false);
  if (follow) toEnd();
  setBusy(false);
  if (await stillKept(asked.id)) await store.save(asked);
  byId("announce").textContent = message.error ? "The answer failed." : "The answer is complete.";
  if (message.status === 401) openSettings("key");
  if (conversation === asked) prompt.focus();
}

async function stillKept(id) {
  return (await store.list()).some((each) => each.id === id);
}

/** Calls `paint` at most every PAINT_MS, so that fast models do not cost a rendering per token. */
class Painter {
  constructor(paint) {
    this._paint = paint;
    this._timer = null;
  }

  request() {
    this._timer ??= setTimeout(() => {
      this._timer = null;
      this._paint();
    }, PAINT_MS);
  }

  cancel() {
    clearTimeout(this._timer);
  }
}

function setBusy(busy) {
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
  document.body.classList.toggle("busy", busy);
}

// --- scrolling ------------------------------------------------------------------------------------

function nearEnd() {
  return scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR_END_PX;
}

function toEnd() {
  scroll.scrollTop = scroll.scrollHeight;
}

scroll.addEventListener("scroll", () => {
  byId("to-end").hidden = nearEnd();
}, { passive: true });
byId("to-end").addEventListener("click", toEnd);

// --- the composer and the keys ------------------------------------------------------------------

function fitPrompt() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
  byId("send").disabled = !prompt.value.trim();
}

function send() {
  const text = prompt.value.trim();
  if (!text || generation) return;
  prompt.value = "";
  fitPrompt();
  ask(text);
}

prompt.addEventListener("input", fitPrompt);
prompt.addEventListener("keydown", (event) => {
  // isComposing: Enter chooses a word in an input method, it does not send.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("stop").addEventListener("click", () => generation?.stop());
byId("new").addEventListener("click", startNew);
byId("open-settings").addEventListener("click", () => openSettings());
byId("open-sidebar").addEventListener("click", () => {
  document.body.classList.add("listing");
  byId("close-sidebar").focus();
});
for (const id of ["close-sidebar", "backdrop"]) {
  byId(id).addEventListener("click", () => document.body.classList.remove("listing"));
}
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    if (document.body.classList.contains("listing")) document.body.classList.remove("listing");
    else generation?.stop();
  } else if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    startNew();
  }
});

// --- models ---------------------------------------------------------------------------------------

async function loadModels() {
  const select = byId("model");
  try {
    const served = await models();
    const names = served.map((model) => model.id);
    showTask(served[0]);
    const chosen = localStorage.getItem(MODEL);
    select.replaceChildren(...names.map((name) => h("option", { selected: name === chosen }, name)));
    select.disabled = names.length < 2;
  } catch (error) {
    if (error.status === 401) openSettings("key");
    else setTimeout(loadModels, 2000); // it still loads
  }
}

/** Says what the model does, if that is no chat. Its adapters do the same. */
function showTask({ id, task }) {
  const other = OTHER_TASKS[task];
  chats = !other;
  untitled = chats ? "New chat" : id;
  byId("title").textContent = conversation.title || untitled;
  document.body.classList.toggle("no-chat", !chats);
  byId("no-chat").hidden = chats;
  if (chats) return;
  const parts = other.split(CODE).map((part, index) => (index % 2 ? h("code", {}, part) : part));
  byId("no-chat").replaceChildren(
    h("strong", {}, id), " cannot chat: ", ...parts,
    " What it is doing is on the ", h("a", { href: "dashboard" }, "dashboard"), ".");
}
byId("model").addEventListener("change", (event) => localStorage.setItem(MODEL, event.target.value));

// --- start ----------------------------------------------------------------------------------------

drawIcons();
connectThemeButton(byId("theme"));
byId("suggestions").append(...SUGGESTIONS.map((text) =>
  h("li", {}, h("button", { type: "button", onclick: () => ask(text) }, text))));
fitPrompt();
loadModels();
const current = sessionStorage.getItem(CURRENT);
show((await store.list()).find((each) => each.id === current) ?? conversation);
