// The official JavaScript clients against a gateway: makes the calls, prints what came of each as one JSON object.
// Arguments: base URL. The key comes from CLIENT_KEY.
import OpenAI, { toFile } from "openai";
import Anthropic from "@anthropic-ai/sdk";

const [url] = process.argv.slice(2);
const key = process.env.CLIENT_KEY;
const openai = new OpenAI({ apiKey: key, baseURL: `${url}/v1`, maxRetries: 0 });
const anthropic = new Anthropic({ apiKey: key, baseURL: url, maxRetries: 0 });
const messages = [{ role: "user", content: "hello" }];
const plan = (id, members) => ({ headers: { "x-request-id": id, "x-synthetic": JSON.stringify(members ?? {}) } });

const calls = {
  async chat() {
    const { data, request_id } = await openai.chat.completions.create({ model: "all", messages }, plan("js-chat")).withResponse();
    return { text: data.choices[0].message.content, request_id };
  },
  async chat_stream() {
    const stream = await openai.chat.completions.create(
      { model: "all", messages, stream: true, stream_options: { include_usage: true } }, plan("js-chat-stream", { tokens: 20 }));
    let text = "", usage = null;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    return { text, completion: usage.completion_tokens };
  },
  async chat_leave() {
    const stream = await openai.chat.completions.create(
      { model: "all", messages, stream: true }, plan("js-leave", { tokens: 60, token_delay_ms: 100 }));
    for await (const chunk of stream) {
      if (chunk.choices[0]?.delta?.content === " t2") break;
    }
    return {};
  },
  async chat_fails() {
    const stream = await openai.chat.completions.create(
      { model: "all", messages, stream: true }, plan("js-fails", { tokens: 9, token_delay_ms: 5, reset_after: 3 }));
    let text = "";
    try {
      for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
    } catch (error) {
      return { text, code: error.code, kind: error instanceof OpenAI.APIError };
    }
    return { text, code: null };
  },
  async tools() {
    const tools = [{ type: "function", function: { name: "look", parameters: { type: "object", properties: {} } } }];
    const answer = await openai.chat.completions.create({ model: "all", messages, tools }, plan("js-tools"));
    return { reason: answer.choices[0].finish_reason };
  },
  async responses() {
    const stream = await openai.responses.create({ model: "all", input: "hello", stream: true }, plan("js-responses"));
    let text = "", numbers = [], last = null;
    for await (const event of stream) {
      numbers.push(event.sequence_number);
      if (event.type === "response.output_text.delta") text += event.delta;
      last = event.type;
    }
    return { text, last, ordered: numbers.every((number, index) => number === index) };
  },
  async embeddings() {
    const answer = await openai.embeddings.create({ model: "all", input: ["a", "b"] }, plan("js-embeddings"));
    return { vectors: answer.data.map((item) => Array.from(item.embedding)) };
  },
  async transcription() {
    const file = await toFile(Buffer.alloc(1_500_000, "ab"), "a.wav");
    const answer = await openai.audio.transcriptions.create({ model: "whisper", file }, plan("js-transcription"));
    return { text: answer.text };
  },
  async speech() {
    const answer = await openai.audio.speech.create({ model: "voice", voice: "alloy", input: "hello" }, plan("js-speech"));
    return { bytes: (await answer.arrayBuffer()).byteLength };
  },
  async models() {
    const ids = [];
    for await (const model of openai.models.list()) ids.push(model.id);
    return { ids };
  },
  async error() {
    try {
      await openai.chat.completions.create({ model: "nobody", messages });
    } catch (error) {
      return { name: error.constructor.name, status: error.status, code: error.code, type: error.type };
    }
    return {};
  },
  async anthropic_message() {
    const message = await anthropic.messages.create({ model: "all", max_tokens: 50, messages }, plan("js-message"));
    return { text: message.content[0].text, reason: message.stop_reason, request_id: message._request_id };
  },
  async anthropic_stream() {
    let text = "";
    const stream = anthropic.messages
      .stream({ model: "all", max_tokens: 50, messages }, plan("js-message-stream", { tokens: 20 }))
      .on("text", (part) => { text += part; });
    const message = await stream.finalMessage();
    return { text, output: message.usage.output_tokens };
  },
  async anthropic_beta() {
    const message = await anthropic.beta.messages.create(
      { model: "all", max_tokens: 50, messages, betas: ["context-1m-2025-08-07"] }, plan("js-beta"));
    return { reason: message.stop_reason };
  },
  async anthropic_fails() {
    const stream = await anthropic.messages.create(
      { model: "all", max_tokens: 50, messages, stream: true }, plan("js-message-fails", { tokens: 9, token_delay_ms: 5, reset_after: 3 }));
    let parts = 0;
    try {
      for await (const event of stream) parts += event.type === "content_block_delta" ? 1 : 0;
    } catch (error) {
      return { parts, type: error.error?.error?.type ?? error.type, kind: error instanceof Anthropic.APIError };
    }
    return { parts, type: null };
  },
  async anthropic_count() {
    const answer = await anthropic.messages.countTokens({ model: "all", messages }, plan("js-count"));
    return { positive: answer.input_tokens > 0 };
  },
  async anthropic_models() {
    const ids = [];
    for await (const model of anthropic.models.list()) ids.push(model.id);
    return { ids };
  },
  async anthropic_error() {
    try {
      await anthropic.messages.create({ model: "nobody", max_tokens: 9, messages });
    } catch (error) {
      return { name: error.constructor.name, status: error.status, type: error.error?.error?.type, id: !!error.requestID };
    }
    return {};
  },
};

const results = {};
for (const [name, call] of Object.entries(calls)) {
  try {
    results[name] = await call();
  } catch (error) {
    results[name] = { failed: `${error.constructor.name}: ${error.message}` };
  }
}
process.stdout.write(JSON.stringify(results));
