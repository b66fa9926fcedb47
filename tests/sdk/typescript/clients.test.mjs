// The official TypeScript SDKs against a running server, in each of the places that HEADRACE_PLACES lists: a chat, a stream, a tool's round
// trip, an error. `tests/sdk/test_typescript.py` starts the servers and runs this.

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const PLACES = JSON.parse(process.env.HEADRACE_PLACES);
const QUESTION = [{ role: "user", content: "What is prefill?" }];
const WEATHER = [{ role: "user", content: "What is the weather in Lisbon?" }];
const RESULT = '{"temperature": 21, "unit": "celsius", "condition": "sunny"}';
const SCHEMA = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const DESCRIPTION = "Get the current weather for a city";
const CALLED = { city: "Lisbon" };
const LIMIT = 64;

/** Long answers are cut by the limit of tokens. */
function heard(place, text) {
  assert.ok(text.length > 0 && place.words.startsWith(text), text);
}

for (const place of PLACES) {
  const retries = { maxRetries: 0, timeout: 60_000 };
  const common = { model: place.model, max_tokens: LIMIT, temperature: 0 };

  describe(`openai, ${place.name}`, () => {
    const client = new OpenAI({ baseURL: `${place.openai}/v1`, apiKey: place.key, ...retries });
    const tools = [{ type: "function", function: { name: "get_weather", description: DESCRIPTION, parameters: SCHEMA } }];

    test("chats", async () => {
      const answer = await client.chat.completions.create({ ...common, messages: QUESTION });
      heard(place, answer.choices[0].message.content);
      assert.ok(answer.usage.completion_tokens > 0 && answer._request_id);
    });

    test("streams", async () => {
      const options = { ...common, messages: QUESTION, stream: true, stream_options: { include_usage: true } };
      const stream = await client.chat.completions.create(options);
      let [text, pieces, usage] = ["", 0, null];
      for await (const chunk of stream) {
        text += chunk.choices[0]?.delta?.content ?? "";
        pieces += 1;
        usage = chunk.usage ?? usage;
      }
      heard(place, text);
      assert.ok(pieces > 3 && usage.completion_tokens > 0);
    });

    test("puts a stream together", async () => {
      const stream = client.chat.completions.stream({ ...common, messages: WEATHER, tools });
      const answer = await stream.finalChatCompletion();
      const [call] = answer.choices[0].message.tool_calls;
      assert.deepEqual([call.function.name, JSON.parse(call.function.arguments)], ["get_weather", CALLED]);
      assert.equal(answer.choices[0].finish_reason, "tool_calls");
    });

    test("runs a tool", async () => {
      const asked = [];
      const tool = {
        type: "function",
        function: {
          name: "get_weather",
          description: DESCRIPTION,
          parameters: SCHEMA,
          parse: JSON.parse,
          function: (argument) => (asked.push(argument), RESULT),
        },
      };
      const runner = client.chat.completions.runTools({ ...common, messages: [...WEATHER], tools: [tool] });
      const answer = await runner.finalContent();
      assert.deepEqual(asked, [CALLED]);
      assert.ok(answer.includes(place.told), answer);
    });

    test("lists models", async () => {
      const names = [];
      for await (const model of client.models.list()) names.push(model.id);
      assert.ok(names.includes(place.model), String(names));
    });

    test("tells errors by their class", async () => {
      const wrong = client.chat.completions.create({ ...common, messages: [] });
      await assert.rejects(wrong, (error) => error instanceof OpenAI.BadRequestError && error.param === "messages");
      const stranger = new OpenAI({ baseURL: `${place.openai}/v1`, apiKey: "sk-wrong", ...retries });
      await assert.rejects(stranger.models.list(), (error) => error instanceof OpenAI.AuthenticationError);
    });
  });

  describe(`anthropic, ${place.name}`, () => {
    const client = new Anthropic({ baseURL: place.anthropic, apiKey: place.key, ...retries });
    const tools = [{ name: "get_weather", description: DESCRIPTION, input_schema: SCHEMA }];
    const words = (answer) => answer.content.map((block) => block.text ?? "").join("");

    test("chats", async () => {
      const answer = await client.messages.create({ ...common, messages: QUESTION });
      heard(place, words(answer));
      assert.ok(answer.usage.output_tokens > 0);
    });

    test("streams", async () => {
      const stream = client.messages.stream({ ...common, messages: QUESTION });
      const pieces = [];
      stream.on("text", (text) => pieces.push(text));
      const answer = await stream.finalMessage();
      heard(place, words(answer));
      assert.equal(pieces.join(""), words(answer));
      assert.ok(pieces.length > 3 && answer.usage.output_tokens > 0);
    });

    for (const how of ["whole", "streamed"]) {
      test(`calls a tool, ${how}`, async () => {
        const ask = (messages) => {
          const options = { ...common, messages, tools };
          return how === "whole" ? client.messages.create(options) : client.messages.stream(options).finalMessage();
        };
        const asked = await ask(WEATHER);
        assert.equal(asked.stop_reason, "tool_use");
        const call = asked.content.find((block) => block.type === "tool_use");
        assert.deepEqual([call.name, call.input], ["get_weather", CALLED]);
        const result = { type: "tool_result", tool_use_id: call.id, content: RESULT };
        const turns = [...WEATHER, { role: "assistant", content: asked.content }, { role: "user", content: [result] }];
        const answer = await ask(turns);
        assert.ok(words(answer).includes(place.told), words(answer));
      });
    }

    test("tells errors by their class", async () => {
      const wrong = client.messages.create({ ...common, messages: [] });
      await assert.rejects(wrong, (error) => error instanceof Anthropic.BadRequestError);
    });
  });
}
