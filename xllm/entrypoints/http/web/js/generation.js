// Asks the server for one answer and writes it into a message as it arrives.

import { streamChat } from "./api.js";
import { requestFields, settings } from "./preferences.js";

/** What the server gets to see of a conversation. */
export function wireMessages(messages) {
  const wire = [];
  const { system } = settings();
  if (system) wire.push({ role: "system", content: system });
  for (const { role, content } of messages) {
    if (content) wire.push({ role, content }); // an answer that failed or only called tools has none
  }
  return wire;
}

/** One answer in the making; `stop` ends it and keeps what is there. */
export class Generation {
  constructor(message) {
    this._message = message;
    this._abort = new AbortController();
  }

  stop() {
    this._message.stopped = true;
    this._abort.abort();
  }

  /** Runs to the end; `changed` is called whenever the message has grown. Never throws. */
  async run(model, messages, changed) {
    const message = this._message;
    const begin = performance.now();
    let first = null;
    let last = null;
    try {
      const body = { model, messages: wireMessages(messages), ...requestFields() };
      for await (const chunk of streamChat(body, this._abort.signal)) {
        const now = performance.now();
        if (this._take(chunk, now)) {
          first ??= now;
          last = now;
        }
        const tokens = chunk.usage?.completion_tokens;
        if (tokens && first !== null) {
          message.figures = {
            tokens,
            ttftSeconds: (first - begin) / 1000,
            tokensPerSecond: tokens > 1 && last > first ? ((tokens - 1) * 1000) / (last - first) : null,
          };
        }
        changed();
      }
    } catch (error) {
      if (error.name !== "AbortError") {
        message.error = error.message;
        message.status = error.status;
      }
    }
    this._endThought(performance.now());
  }

  /** Adds a chunk's news; whether there were any. */
  _take(chunk, now) {
    const message = this._message;
    const choice = chunk.choices?.[0];
    if (!choice) return false;
    if (choice.finish_reason) message.finish = choice.finish_reason;
    const delta = choice.delta ?? {};
    const thought = delta.reasoning_content ?? delta.reasoning;
    if (thought) {
      this._thoughtBegin ??= now;
      message.reasoning = (message.reasoning ?? "") + thought;
    }
    if (delta.content) {
      this._endThought(now);
      message.content += delta.content;
    }
    for (const call of delta.tool_calls ?? []) {
      this._endThought(now);
      message.toolCalls ??= [];
      const known = (message.toolCalls[call.index] ??= { name: "", arguments: "" });
      known.name += call.function?.name ?? "";
      known.arguments += call.function?.arguments ?? "";
    }
    return Boolean(thought || delta.content || delta.tool_calls?.length);
  }

  _endThought(now) {
    if (this._thoughtBegin !== undefined) {
      this._message.thoughtSeconds ??= (now - this._thoughtBegin) / 1000;
    }
  }
}
