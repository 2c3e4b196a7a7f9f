// The Vercel AI SDK, by its provider for OpenAI's API: `node vercel_client.mjs URL KEY` prints what it got as JSON.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, jsonSchema, streamText, tool } from "ai";

const [url, key] = process.argv.slice(2);
const model = (name = "demo", apiKey = key) => createOpenAICompatible({ name: "raylane", baseURL: `${url}/v1`, apiKey })(name);
const prompt = "Count from 3 to 8.";
const pick = tool({
  description: "Picks a number.",
  inputSchema: jsonSchema({ type: "object", properties: { n: { enum: [1, 2] } }, required: ["n"] }),
});

async function failed(changed) {
  try {
    await generateText({ model: model(), prompt, maxRetries: 0, ...changed });
  } catch (error) {
    return APICallError.isInstance(error) ? ["APICallError", error.statusCode] : [String(error)];
  }
  return [];
}

const chat = await generateText({ model: model(), prompt, temperature: 0 });
const pieces = [];
for await (const piece of streamText({ model: model(), prompt, temperature: 0 }).textStream) pieces.push(piece);
const toolChoice = { type: "tool", toolName: "pick" };
const called = await generateText({ model: model(), prompt, tools: { pick }, toolChoice, maxOutputTokens: 64, temperature: 0 });
const [call] = called.toolCalls;
console.log(
  JSON.stringify({
    chat: chat.text,
    pieces,
    tool: [call.toolName, call.input],
    errors: [
      await failed({ model: model("demo", "wrong") }),
      await failed({ model: model("other") }),
      await failed({ prompt: "1, 2, ".repeat(9000) }),
    ],
    more: {},
  }),
);
