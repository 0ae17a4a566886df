import { create } from '@bufbuild/protobuf';
import { type ConnectRequest, ConnectRequestSchema } from '@kellet/proto/es/kellet/v1/device_link_pb';
import { expect } from 'chai';
import { firstHello } from './first-hello.ts';

describe('the first message of a stream', () => {
  const hello = create(ConnectRequestSchema, { event: { case: 'hello', value: { deviceIds: ['d1'] } } });
  const heartbeat = create(ConnectRequestSchema, { event: { case: 'heartbeat', value: {} } });
  type Next = IteratorResult<ConnectRequest, undefined>;
  const never = new Promise<Next>(() => undefined);
  const gone = () => Promise.reject<Next>(new Error('the client has disconnected'));
  const cases: {
    name: string;
    next: (call: AbortController) => Promise<Next>;
    isOver?: true;
    want: string | undefined;
  }[] = [
    { name: 'is hello', next: async () => ({ value: hello }), want: 'd1' },
    { name: 'is another one', next: async () => ({ value: heartbeat }), want: 'the first message must be hello' },
    {
      name: 'is absent',
      next: async () => ({ done: true, value: undefined }),
      want: 'the first message must be hello',
    },
    { name: 'is late', next: () => never, want: 'hello is required within 10 seconds' },
    { name: 'cannot be read', next: gone, want: 'the client has disconnected' },
    { name: 'is hello, and the call is over', next: async () => ({ value: hello }), isOver: true, want: undefined },
    { name: 'does not arrive, and the call is over', next: () => never, isOver: true, want: undefined },
    {
      name: 'does not arrive before the call ends',
      next: (call) => {
        setTimeout(() => call.abort(), 5);
        return never;
      },
      want: undefined,
    },
    {
      name: 'does not arrive before the client disconnects',
      next: (call) => {
        call.abort();
        return gone();
      },
      want: undefined,
    },
  ];
  for (const { name, next, isOver, want } of cases) {
    it(name, async () => {
      const call = new AbortController();
      if (isOver) call.abort();
      const begun = performance.now();
      const patience = name === 'is late' ? 50 : 60_000;
      const outcome = await firstHello({ next: () => next(call) }, call.signal, patience).then(
        (value) => value?.deviceIds[0],
        (error: Error) => error.message,
      );
      expect(outcome).to.equal(want);
      expect(performance.now() - begun).to.be.below(2000);
    });
  }
});
