import { expect } from 'chai';
import { accountOf } from './data-plane.ts';
import { chooseEndpoint, defaultService } from './endpoint.ts';
import { choosePod, type Pod } from './port-forward.ts';

describe('the endpoint of the data plane', () => {
  for (const [what, hints, want] of [
    ['no address is given', {}, defaultService],
    [
      'the command line',
      { server: 'https://kellet.test/', service: 'a/b' },
      { kind: 'url', url: 'https://kellet.test' },
    ],
    [
      'plain HTTP on the command line',
      { server: 'http://10.0.0.1:8080' },
      { kind: 'url', url: 'http://10.0.0.1:8080' },
    ],
    ['a base with a path', { server: 'https://x.test/kellet/' }, { kind: 'url', url: 'https://x.test/kellet' }],
    ['a Service', { service: 'a/b', annotation: 'https://x.test' }, { kind: 'service', namespace: 'a', name: 'b' }],
    ['the namespace', { annotation: 'https://x.test' }, { kind: 'url', url: 'https://x.test' }],
    [
      'the namespace, on this machine',
      { annotation: 'http://127.0.0.1:1' },
      { kind: 'url', url: 'http://127.0.0.1:1' },
    ],
    ['an empty variable', { server: '' }, defaultService],
  ] as const) {
    it(what, () => expect(chooseEndpoint(hints)).to.deep.equal(want));
  }
  for (const [what, hints, message] of [
    ['text that is not a URL', { server: 'kellet' }, '--server takes a URL'],
    ['another scheme', { server: 'ftp://kellet.test' }, '--server takes a URL'],
    ['a Service without namespace', { service: 'b' }, '--service takes NAMESPACE/NAME'],
    ['too many parts', { service: 'a/b/c' }, '--service takes NAMESPACE/NAME'],
    ['an annotation without TLS', { annotation: 'http://kellet.test' }, 'is not an https URL'],
    ['an annotation that is not a URL', { annotation: 'kellet' }, 'is not an https URL'],
  ] as const) {
    it(`rejects ${what}`, () => expect(() => chooseEndpoint(hints)).to.throw(message));
  }
});

describe('the service account', () => {
  for (const [text, want] of [
    [undefined, { namespace: 'here', name: 'kellet-cli' }],
    ['team', { namespace: 'here', name: 'team' }],
    ['there/team', { namespace: 'there', name: 'team' }],
  ] as const) {
    it(text ?? '(default)', () => expect(accountOf(text, 'here')).to.deep.equal(want));
  }
});

describe('the pod behind a Service', () => {
  const pod = (name: string, ready: string, more: object = {}): Pod => ({
    metadata: { name, ...more },
    spec: { containers: [{}, { ports: [{ name: 'rest', containerPort: 8080 }] }] },
    status: { conditions: [{ type: 'Ready', status: ready }] },
  });
  const service = (targetPort?: string | number) => ({
    spec: {
      ports: [
        { name: 'grpc', port: 9090 },
        { name: 'rest', port: 80, ...(targetPort ? { targetPort } : {}) },
      ],
    },
  });
  for (const [what, pods, target, want] of [
    ['none', [], 'rest', undefined],
    ['no ready pod', [pod('a', 'False'), pod('b', 'Unknown')], 'rest', undefined],
    ['only a terminating pod', [pod('a', 'True', { deletionTimestamp: 'now' })], 'rest', undefined],
    [
      'the first ready one, by the name of its port',
      [pod('a', 'False'), pod('b', 'True')],
      'rest',
      { pod: 'b', port: 8080 },
    ],
    ['by the number of its port', [pod('a', 'True')], 8081, { pod: 'a', port: 8081 }],
    ['by the Service’s own port', [pod('a', 'True')], undefined, { pod: 'a', port: 80 }],
  ] as const) {
    it(what, () => expect(choosePod(service(target), pods)).to.deep.equal(want));
  }
});
