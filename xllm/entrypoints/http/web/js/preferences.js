// What this browser remembers besides conversations: settings, the API key, the theme.

import { byId, icon } from "./dom.js";

const SETTINGS = "xllm.settings";
const KEY = "xllm.key";
const THEME = "xllm.theme";
const THEMES = ["auto", "light", "dark"];
const THEME_ICONS = { auto: "auto", light: "sun", dark: "moon" };
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"];

/** Settings by field name, all strings as typed; missing ones are the model's default. */
export function settings() {
  return JSON.parse(localStorage.getItem(SETTINGS) ?? "{}");
}

export function saveSettings(values) {
  localStorage.setItem(SETTINGS, JSON.stringify(values));
}

/** The request fields that settings stand for. Throws SyntaxError for tools that are not JSON. */
export function requestFields(values = settings()) {
  const fields = {};
  for (const name of NUMBERS) if (values[name]) fields[name] = Number(values[name]);
  if (values.thinking) fields.chat_template_kwargs = { enable_thinking: values.thinking === "on" };
  if (values.tools) {
    const tools = JSON.parse(values.tools);
    if (!Array.isArray(tools)) throw new SyntaxError("a list is needed");
    if (tools.length) fields.tools = tools;
  }
  return fields;
}

/** The API key: for this tab, or for this browser where the user said so. Never part of a URL. */
export function apiKey() {
  return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "";
}

export const keyIsRemembered = () => localStorage.getItem(KEY) !== null;

export function saveApiKey(key, remember) {
  for (const storage of [sessionStorage, localStorage]) storage.removeItem(KEY);
  if (key) (remember ? localStorage : sessionStorage).setItem(KEY, key);
}

/** Lets a button go round the themes: as the system has it, light, dark. */
export function connectThemeButton(button) {
  const show = () => {
    const theme = localStorage.getItem(THEME) ?? "auto";
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.replaceChildren(icon(THEME_ICONS[theme]));
    button.title = `Theme: ${theme}`;
    button.setAttribute("aria-label", button.title);
  };
  button.addEventListener("click", () => {
    const theme = localStorage.getItem(THEME) ?? "auto";
    localStorage.setItem(THEME, THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]);
    show();
  });
  show();
}

/** The settings dialog; `changed` is called after a save, `forget` when all is to be deleted. */
export function connectSettings({ changed, forget }) {
  const dialog = byId("settings");
  const form = dialog.querySelector("form");
  const problem = byId("settings-problem");
  const fields = () => [...form.elements].filter((f) => f.name && !["key", "remember"].includes(f.name));

  const save = (event) => {
    const values = Object.fromEntries(fields().map((f) => [f.name, f.value.trim()]));
    try {
      requestFields(values);
    } catch (error) {
      event.preventDefault();
      problem.textContent = `Tools: ${error.message}`;
      problem.hidden = false;
      return;
    }
    saveSettings(values);
    saveApiKey(form.elements.key.value.trim(), form.elements.remember.checked);
    dialog.close();
    changed();
    event.preventDefault();
  };
  form.addEventListener("submit", (event) => {
    if (event.submitter?.value !== "cancel") save(event);
  });
  byId("forget").addEventListener("click", () => {
    if (confirm("Delete every conversation of this browser?")) {
      forget();
      dialog.close();
    }
  });
  return (focus = "system") => {
    const values = settings();
    for (const field of fields()) field.value = values[field.name] ?? "";
    form.elements.key.value = apiKey();
    form.elements.remember.checked = keyIsRemembered();
    problem.hidden = true;
    dialog.showModal();
    form.elements[focus].focus();
  };
}
