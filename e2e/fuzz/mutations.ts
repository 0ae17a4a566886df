// Mutations of requests, in place. The result is well-formed HTTP, unlike that of raw-bytes.ts.
import type { Random } from './random.ts';
import type { FuzzRequest } from './request.ts';

type Mutation = (request: FuzzRequest, random: Random) => void;

const long = (length: number): string => 'a'.repeat(length);
const deep = (depth: number): string => '['.repeat(depth) + ']'.repeat(depth);

/** Unexpected values. `JSON.parse` allows keys that a literal cannot have. */
const oddValues: unknown[] = [
  null,
  true,
  false,
  0,
  -1,
  1.5,
  -0,
  2 ** 31,
  2 ** 32,
  2 ** 53,
  -(2 ** 63),
  1e308,
  '',
  ' ',
  '0',
  '-1',
  '1e400',
  'NaN',
  'Infinity',
  'null',
  'true',
  '\u0000',
  'a\u0000b',
  '\ud800',
  '\u202e',
  '𝔘𝔫𝔦',
  'é\u0301\u0301\u0301',
  '\r\n',
  '%00',
  '../../etc/passwd',
  "' OR 1=1 --",
  '{{7*7}}',
  '<script>',
  long(300),
  long(70_000),
  [],
  [[]],
  [null],
  {},
  { a: { a: { a: {} } } },
  JSON.parse('{"__proto__": {"x": 1}}'),
  JSON.parse('{"constructor": {"prototype": 1}, "toString": 1}'),
  '2026-13-45T99:99:99Z',
  '0000-01-01T00:00:00Z',
  '9999-12-31T23:59:60Z',
  '2026-01-01T00:00:00.123456789123Z',
  '00000000-0000-0000-0000-000000000000',
  'sk_live_' + long(40),
];

const oddSegments = [
  '',
  '.',
  '..',
  '%2e%2e',
  '%2F',
  '%00',
  '%',
  '%zz',
  '%c0%af',
  '%ff%fe',
  '%F0%9F%98%80',
  'a%20b',
  ':cancel',
  'x;y=z',
  'rpc',
  'rollouts',
  '00000000-0000-0000-0000-000000000000',
  long(2000),
  '*',
  '**',
  '{device_id}',
  '$ne',
  '~',
  '-1',
];

const oddPairs = [
  'colour=red',
  'page_size=-1',
  'page_size=999999999999',
  'page_size=1e3',
  'page_size=0x10',
  'page_size=',
  'page_size',
  'page_token=bm9ib2R5',
  'page_token=%00',
  'page_token=' + long(3000),
  'limit=-5',
  'offset=-5',
  'offset=4294967295',
  'offset=4294967296',
  'length=0',
  'length=65537',
  'status=nothing',
  'status=0',
  'status=1',
  'status=-1',
  'status=2147483648',
  'tag==',
  'tag=%3D%3D',
  'q=%25_%5C',
  'start=yesterday',
  'start=2026-01-01T00:00:00Z',
  'end=0001-01-01T00:00:00Z',
  'interval_seconds=4294967295',
  'interval_seconds=1',
  'aggregation=avg',
  'order=desc',
  'keys=',
  'keys=temperature',
  'device_id=x',
  'include_bundle=yes',
  'include_bundle=true',
  '__proto__=1',
  '__proto__.x=1',
  'constructor.name=1',
  'a.b.c.d=1',
  '=',
  '&&&',
  '%=%',
  '%ff=%ff',
  '+=+',
  'update_mask=name',
];

const oddHeaders: [string, string][] = [
  ['content-type', 'text/plain'],
  ['content-type', 'application/json; charset=utf-16'],
  ['content-type', 'multipart/form-data; boundary=x'],
  ['content-type', ''],
  ['content-encoding', 'gzip'],
  ['content-encoding', 'identity'],
  ['accept', 'text/html'],
  ['accept', 'application/octet-stream'],
  ['accept', ';;;q=,'],
  ['accept-encoding', 'br, gzip'],
  ['range', 'bytes=0-10'],
  ['range', 'bytes=-1'],
  ['range', 'bytes=9-1'],
  ['range', 'bytes=99999999999999999999-'],
  ['range', 'lines=1-2'],
  ['if-range', '"x"'],
  ['if-none-match', '*'],
  ['content-range', 'bytes 0-1/2'],
  ['content-range', 'bytes 5-1/2'],
  ['content-range', 'nonsense'],
  ['idempotency-key', ''],
  ['idempotency-key', long(300)],
  ['idempotency-key', 'k1'],
  ['traceparent', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'],
  ['traceparent', 'zz-zz-zz-zz'],
  ['tracestate', long(1000)],
  ['grpc-timeout', '1S'],
  ['grpc-timeout', '-1S'],
  ['grpc-timeout', '99999999999H'],
  ['grpc-metadata-x', 'y'],
  ['x-tenant-id', 'acme'],
  ['x-user-id', 'root'],
  ['x-forwarded-for', '1.2.3.4, ::1, nonsense'],
  ['x-forwarded-for', long(2000)],
  ['forwarded', 'for="[::1'],
  ['origin', 'http://evil.example'],
  ['origin', 'null'],
  ['cookie', 'a=b; c'],
  ['x-kellet-namespace', 'kube-system'],
  ['x-api-key', 'sk_live_nonsense'],
  ['x-arc-signature', 'sha256=00'],
  ['x-http-method-override', 'DELETE'],
  ['te', 'trailers'],
  ['upgrade', 'websocket'],
  ['upgrade', 'h2c'],
  ['via', '1.1 x'],
];

/** A position in a JSON value. */
interface Place {
  container: Record<string, unknown> | unknown[];
  key: string | number;
}

/** Returns every position of a value, the deepest last. */
function placesOf(value: unknown): Place[] {
  if (typeof value !== 'object' || value === null) return [];
  const container = value as Record<string, unknown> | unknown[];
  const keys = Array.isArray(container) ? container.map((_, index) => index) : Object.keys(container);
  return keys.flatMap((key) => [{ container, key }, ...placesOf((container as Record<string | number, unknown>)[key])]);
}

const setAt = ({ container, key }: Place, value: unknown): void => {
  Object.defineProperty(container, key, { value, writable: true, enumerable: true, configurable: true });
};

const textOf = (request: FuzzRequest): string => request.body?.toString('latin1') ?? JSON.stringify(request.json ?? {});
const setText = (request: FuzzRequest, text: string, encoding: BufferEncoding = 'utf8'): void => {
  request.body = Buffer.from(text, encoding);
};

/** Changes one position of the JSON body. */
const inJson: Mutation[] = [
  (request, random) => {
    const places = placesOf(request.json);
    if (places.length > 0) setAt(random.pick(places), random.pick(oddValues));
    else request.json = random.pick(oddValues);
  },
  (request, random) => {
    const places = placesOf(request.json).filter(({ container }) => !Array.isArray(container));
    if (places.length === 0) return;
    const { container, key } = random.pick(places);
    delete (container as Record<string, unknown>)[key];
  },
  (request, random) => {
    const objects = [{ container: request.json, key: '' }, ...placesOf(request.json)].map(({ container }) => container);
    const object = random.pick(objects);
    const names = ['colour', '__proto__', 'toString', '', 'deviceId', 'update_mask', 'updateMask', 'page_size', 'a.b'];
    if (typeof object === 'object' && object !== null && !Array.isArray(object)) {
      setAt({ container: object as Record<string, unknown>, key: random.pick(names) }, random.pick(oddValues));
    }
  },
  (request, random) => {
    const lists = placesOf(request.json).filter(({ container, key }) =>
      Array.isArray((container as Record<string | number, unknown>)[key]),
    );
    if (lists.length === 0) return;
    const place = random.pick(lists);
    const list = (place.container as Record<string | number, unknown>)[place.key] as unknown[];
    setAt(
      place,
      Array.from({ length: random.pick([0, 2, 101, 6000]) }, () => list[0] ?? random.pick(oddValues)),
    );
  },
  (request, random) => (request.json = random.pick(oddValues)),
];

/** Changes the text of the body. */
const inText: Mutation[] = [
  (request, random) => setText(request, textOf(request).slice(0, random.below(textOf(request).length + 1))),
  (request, random) => setText(request, textOf(request) + random.pick(['}', ' ', '\n{}', '\u0000', 'null', ','])),
  (request) => setText(request, textOf(request).replace('{', '{"name":"a","name":"b",')),
  (request) => setText(request, `\ufeff${textOf(request)}`),
  (request) => setText(request, textOf(request), 'utf16le'),
  (request) => (request.body = Buffer.from([0x7b, 0x22, 0xff, 0xfe, 0x22, 0x3a, 0x31, 0x7d])),
  (request, random) => setText(request, textOf(request).replace(/"[^"]*"/, deep(random.pick([50, 101, 5000, 50_000])))),
  (request) => setText(request, textOf(request).replace(/:\s*("[^"]*"|\d+)/, ':1e999999')),
  (request) => setText(request, textOf(request).replace(/:\s*("[^"]*"|\d+)/, `:${'9'.repeat(5000)}`)),
  (request) => setText(request, textOf(request).replace(/"([^"]*)"/, '"\\u0000\\ud800$1"')),
  (request, random) =>
    setText(request, random.pick(['', ' ', 'null', 'name=x', '[]', '"', '{', '{]', "{'a':1}", 'NaN'])),
  (request) => setText(request, `{"a":"${long(1_100_000)}"}`),
  (request, random) => {
    const bytes = Buffer.from(textOf(request));
    for (let count = random.below(4) + 1; count > 0 && bytes.length > 0; count -= 1) {
      bytes[random.below(bytes.length)] = random.below(256);
    }
    request.body = bytes;
  },
];

const inTarget: Mutation[] = [
  (request, random) => (request.segments[random.below(request.segments.length)] = random.pick(oddSegments)),
  (request, random) =>
    void request.segments.splice(random.below(request.segments.length + 1), 0, random.pick(oddSegments)),
  (request) => void request.segments.pop(),
  (request, random) => {
    const at = random.below(request.segments.length);
    request.segments[at] = (request.segments[at] ?? '').replace(
      /[a-z]/,
      (letter) => `%${letter.charCodeAt(0).toString(16)}`,
    );
  },
  (request, random) => {
    const at = random.below(request.segments.length);
    request.segments[at] = (request.segments[at] ?? '').toUpperCase();
  },
  (request, random) => void request.query.push(random.pick(oddPairs)),
  (request, random) => void request.query.push(random.pick(oddPairs)),
  (request, random) => {
    const pair = random.pick(oddPairs);
    request.query.push(pair, pair);
  },
  (request, random) =>
    void request.query.push(...Array.from({ length: 300 }, () => random.pick(oddPairs).slice(0, 20))),
];

const inHead: Mutation[] = [
  (request, random) => {
    request.method = random.pick(['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS', 'TRACE', 'PROPFIND']);
  },
  (request, random) => void request.headers.push(random.pick(oddHeaders)),
  (request, random) => void request.headers.push(random.pick(oddHeaders)),
  (request, random) => {
    if (random.chance(0.7)) return;
    request.method = 'OPTIONS';
    request.headers.push(['origin', 'http://x.example'], ['access-control-request-method', 'PUT']);
  },
  (request, random) => void request.headers.push(['x-padding', long(random.pick([100, 4000]))]),
];

/** Changes the request once or twice, most often the body if it has one. */
export function mutate(request: FuzzRequest, random: Random): void {
  for (let count = 1 + random.below(2); count > 0; count -= 1) {
    const groups = request.json === undefined ? [inTarget, inHead] : [inJson, inJson, inText, inTarget, inHead];
    random.pick(random.pick(groups))(request, random);
  }
}
