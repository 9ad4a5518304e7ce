// Conversations, kept in this browser's IndexedDB.
//
// A conversation: {id, title, updated, messages}. A message: {role, content} and, on answers,
// {model, reasoning, thoughtSeconds, toolCalls, figures, stopped, error}.

const DATABASE = "xllm";
const TABLE = "conversations";

function promise(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

let opened;

async function table(mode) {
  opened ??= (() => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
    return promise(request);
  })();
  return (await opened).transaction(TABLE, mode).objectStore(TABLE);
}

export function newConversation() {
  return { id: crypto.getRandomValues(new Uint32Array(4)).join("-"), title: "", updated: Date.now(), messages: [] };
}

/** Every conversation, the latest first. */
export async function list() {
  const all = await promise((await table("readonly")).getAll());
  return all.sort((a, b) => b.updated - a.updated);
}

export async function save(conversation) {
  await promise((await table("readwrite")).put(conversation));
}

export async function remove(id) {
  await promise((await table("readwrite")).delete(id));
}

export async function removeAll() {
  await promise((await table("readwrite")).clear());
}
