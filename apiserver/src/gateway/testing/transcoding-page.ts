// Generates docs/transcoding.md from the conformance table (npm run generate), so that the page matches the tests.
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import type { RawResponse, Vector } from './conformance.ts';
import { conformanceTable } from './conformance-table.ts';

const longest = 120;
const shorten = (text: string): string => (text.length > longest ? `${text.slice(0, longest)}…` : text);

/** Formats text as code for a table cell. */
function code(text: string): string {
  const visible = shorten(text)
    // eslint-disable-next-line no-control-regex -- matches control characters on purpose
    .replace(/[\u0000-\u001f\ufeff\ufffd]/g, (character) =>
      JSON.stringify(character).slice(1, -1).replace('\ufeff', '\\ufeff'),
    )
    .replaceAll('|', '\\|');
  return visible.includes('`') ? `\`\` ${visible} \`\`` : `\`${visible}\``;
}

function request({ send, body, headers }: Vector): string {
  const parts = [code(send)];
  for (const [name, value] of Object.entries(headers ?? {})) parts.push(code(`${name}: ${value}`));
  if (body !== undefined && body.length > 0) {
    parts.push(code(typeof body === 'string' ? body : Buffer.from(body).toString('latin1')));
  }
  return parts.join('<br>');
}

function outcome(vector: Vector): string {
  if (vector.fails) {
    const [status, name, message] = vector.fails;
    return `${status} ${name}${message === '' ? '' : `: ${code(message)}`}`;
  }
  const parts = [`${vector.calls} ${code(JSON.stringify(vector.with ?? {}))}`];
  if (vector.reply !== undefined) parts.push(`← ${code(JSON.stringify(vector.reply))}`);
  if ('response' in vector) {
    const { response } = vector;
    const raw =
      typeof response === 'object' && response !== null && 'contentType' in response
        ? (response as RawResponse)
        : undefined;
    parts.push(
      `→ ${raw ? `${code(raw.contentType)} ${code(JSON.stringify(raw.text))}` : code(JSON.stringify(response))}`,
    );
  }
  return parts.join('<br>');
}

/** Returns the page as Markdown. */
function page(): string {
  const lines = [
    '# HTTP transcoding',
    '',
    'This page shows by example how the gateway transcodes HTTP requests. Every row is a test: `apiserver/src/gateway/transcoding/conformance.test.ts` sends the request over a socket to a gateway that serves the contract in `proto/testing`. This page is generated from the same table (`npm run generate`). The rules are those of `google.api.http` (the comments of `proto/vendor/google/api/http.proto`) and of the JSON form of proto3; the last column names the source. Where the sources leave a choice, and where gateways of this kind differ, the row shows what Kellet does.',
    '',
    'Each row lists what it demonstrates, the request, and the outcome: either the method called and its request (←: the response of the method, →: the HTTP response), or the error, whose message names the field.',
  ];
  for (const { title, about, vectors } of conformanceTable) {
    lines.push('', `## ${title}`, '', about, '', '| what | request | outcome | rule |', '|---|---|---|---|');
    for (const vector of vectors) {
      lines.push(`| ${vector.what} | ${request(vector)} | ${outcome(vector)} | ${vector.rule} |`);
    }
  }
  return `${lines.join('\n')}\n`;
}

writeFileSync(path.join(import.meta.dirname, '../../../../docs/transcoding.md'), page());
