// Generates the code of a call for curl, Python and TypeScript.

/** Quotes a text for a POSIX shell. */
const shell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** A curl command. */
export function curl(base, body) {
  return `curl ${base}/chat/completions \\\n  -H "Authorization: Bearer $HEADRACE_API_KEY" \\\n  -H 'Content-Type: application/json' \\\n  -d ${shell(JSON.stringify(body, null, 2))}\n`;
}

/** Python code for the official OpenAI SDK. Parameters that the SDK does not know go into `extra_body`. */
export function python(base, body) {
  const [known, extra] = split(body);
  const lines = Object.entries(known).map(([name, value]) => `    ${name}=${literal(value, 4)},`);
  if (Object.keys(extra).length) lines.push(`    extra_body=${literal(extra, 4)},`);
  const end = body.stream
    ? 'for chunk in answer:\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or "", end="", flush=True)\n'
    : 'print(answer.choices[0].message.content)\n';
  return `import os\nfrom openai import OpenAI\n\nclient = OpenAI(base_url=${JSON.stringify(base)}, api_key=os.environ["HEADRACE_API_KEY"])\nanswer = client.chat.completions.create(\n${lines.join('\n')}\n)\n${end}`;
}

/** TypeScript code for the official OpenAI SDK. */
export function typescript(base, body) {
  const note = Object.keys(split(body)[1]).length
    ? '  // @ts-expect-error parameters that the SDK does not know are sent as they are\n'
    : '';
  const end = body.stream
    ? 'for await (const chunk of answer) {\n  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");\n}\n'
    : 'console.log(answer.choices[0].message.content);\n';
  return `import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: ${JSON.stringify(base)}, apiKey: process.env.HEADRACE_API_KEY });\n${note}const answer = await client.chat.completions.create(${JSON.stringify(body, null, 2)});\n${end}`;
}

const OPENAI = new Set([
  'model',
  'messages',
  'temperature',
  'top_p',
  'max_tokens',
  'max_completion_tokens',
  'n',
  'stop',
  'stream',
  'stream_options',
  'seed',
  'frequency_penalty',
  'presence_penalty',
  'logit_bias',
  'logprobs',
  'top_logprobs',
  'tools',
  'tool_choice',
  'parallel_tool_calls',
  'response_format',
  'reasoning_effort',
  'service_tier',
  'user',
  'metadata',
  'prompt_cache_key',
  'safety_identifier',
  'verbosity',
  'prediction',
]);

function split(body) {
  const known = {};
  const extra = {};
  for (const [name, value] of Object.entries(body)) (OPENAI.has(name) ? known : extra)[name] = value;
  return [known, extra];
}

/** A value as a Python literal. */
function literal(value, indent) {
  const pad = ' '.repeat(indent);
  if (value === null) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (typeof value === 'string') return JSON.stringify(value);
  if (typeof value !== 'object') return String(value);
  const inner = Array.isArray(value)
    ? value.map((item) => literal(item, indent + 4))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${literal(item, indent + 4)}`);
  const [open, close] = Array.isArray(value) ? ['[', ']'] : ['{', '}'];
  const line = `${open}${inner.join(', ')}${close}`;
  return line.length < 90 && !line.includes('\n')
    ? line
    : `${open}\n${inner.map((item) => `${pad}    ${item},`).join('\n')}\n${pad}${close}`;
}
