// Makes elements. Text given as a child is text: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  plus: "M12 5v14M5 12h14",
  close: "M6 6l12 12M18 6L6 18",
  menu: "M4 7h16M4 12h16M4 17h16",
  up: "M12 19V5M6 11l6-6 6 6",
  down: "M12 5v14M6 13l6 6 6-6",
  stop: "M8 8h8v8H8z",
  chart: "M4 19h16M7 15v-4M12 15V6M17 15V9",
  sliders: "M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 3v1M12 20v1M3 12h1M20 12h1M5.6 5.6l.8.8M17.6 17.6l.8.8M5.6 18.4l.8-.8M17.6 6.4l.8-.8",
  moon: "M19 14.5A7.5 7.5 0 0 1 9.5 5 7.5 7.5 0 1 0 19 14.5z",
  auto: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16M12 4v16M12 8l5-1M12 12h8M12 16l5 1",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "M5 13l4 4L19 7",
  redo: "M19 8v-4M19 8h-4M19 8a8 8 0 1 0 1 5",
  edit: "M4 20h4L19 9l-4-4L4 16z",
  chat: "M5 5h14v11h-8l-4 4v-4H5z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
};

/** An element: `h("a", {href, class, onclick, "aria-label"}, child, "text", ...)`. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** One of the drawings above. */
export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" },
    svg("path", { d: ICONS[name] }));
}

/** A button that is only an icon; `label` is what it says to people who do not see it. */
export function iconButton(name, label, onclick) {
  return h("button", { class: "icon-button", type: "button", "aria-label": label, title: label, onclick },
    icon(name));
}

/** Gives every element of the page with `data-icon` its drawing. */
export function drawIcons() {
  for (const element of document.querySelectorAll("[data-icon]")) {
    element.prepend(icon(element.dataset.icon));
  }
}

async function toClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Browsers give the clipboard to secure pages only; http from another machine is none.
  const area = h("textarea", { class: "visually-hidden" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** Copies text and shows a tick on the button for a moment. */
export async function copy(button, text) {
  await toClipboard(text);
  const before = button.querySelector("svg");
  const tick = icon("check");
  before.replaceWith(tick);
  setTimeout(() => tick.replaceWith(before), 1200);
}

/** The element with an id. */
export const byId = (id) => document.getElementById(id);
