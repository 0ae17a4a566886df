// Malformed HTTP, which the server must survive.
import type { Random } from './random.ts';
import { bytesOf, type FuzzRequest } from './request.ts';

/** Breaks the framing of a request. */
export function breakFraming(request: FuzzRequest, random: Random): Buffer {
  const text = bytesOf(request).toString('latin1');
  const broken: (() => string)[] = [
    () => text.replace('HTTP/1.1', random.pick(['HTTP/1.0', 'HTTP/2.0', 'HTTP/9.9', 'HTTP/1.1x', '', 'http/1.1'])),
    () => text.replace('\r\n', '\n'),
    () => text.replace('host: fuzz.test\r\n', random.pick(['', 'host: a\r\nhost: b\r\n', 'host : a\r\n'])),
    () => text.replace('\r\n\r\n', `\r\n${'x-a: b\r\n'.repeat(3000)}\r\n`),
    () => text.replace('\r\n\r\n', '\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n'),
    () => text.replace('\r\n\r\n', '\r\ncontent-length: -1\r\n\r\n'),
    () => text.replace('\r\n\r\n', '\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n'),
    () => `${text.split('\r\n\r\n')[0]}\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n`,
    () => `${text.split('\r\n\r\n')[0]}\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab`,
    () => `${text.split('\r\n\r\n')[0]}\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n{}`,
    () => `${text.split('\r\n\r\n')[0]}\r\nexpect: the unexpected\r\n\r\n`,
    () => text.replace(/ \/[^ ]*/, ' /a b c'),
    () =>
      text.replace(
        / \/[^ ]*/,
        random.pick([' *', ' http://x/healthz', ' //', ' \\', ' /\u0000', ' ?', ' /%', ' host:80']),
      ),
    () => text.slice(0, random.below(text.length)),
    () => Array.from({ length: 200 }, () => String.fromCharCode(random.below(256))).join(''),
    () => `\u0016\u0003\u0001\u0002\u0000\u0001\u0000\u0001\u00fc\u0003\u0003${text}`,
    () => 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
    () => '\r\n\r\n\r\n' + text,
  ];
  return Buffer.from(random.pick(broken)(), 'latin1');
}
