import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { create, type DescService, fromBinary, type Message, type MessageInitShape } from '@bufbuild/protobuf';
import { FileDescriptorProtoSchema } from '@bufbuild/protobuf/wkt';
import {
  type Client,
  type ClientDuplexStream,
  type ClientReadableStream,
  credentials,
  makeGenericClientConstructor,
  Metadata,
  type ServiceError,
  status,
} from '@grpc/grpc-js';
import { Health, HealthCheckResponse_ServingStatus as Serving } from '@kellet/proto/es/grpc/health/v1/health_pb';
import {
  ServerReflection,
  ServerReflectionRequestSchema,
  type ServerReflectionResponse,
} from '@kellet/proto/es/grpc/reflection/v1/reflection_pb';
import {
  ConnectRequestSchema,
  type ConnectResponse,
  ConnectResponseSchema,
  DeviceLinkService,
} from '@kellet/proto/es/kellet/v1/device_link_pb';
import { type Device, DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { expect } from 'chai';
import { grpcService } from '../../platform/grpc/grpc-service.ts';
import type { CallContext } from '../../platform/rpc.ts';
import { ownersOfTurns } from '../testing/recorded-turns.ts';
import { startTestGateway, type TestGateway } from '../testing/test-gateway.ts';

type Unary = (
  request: Message,
  metadata: Metadata,
  options: { deadline?: number },
  done: (error: ServiceError | null, reply: Message) => void,
) => { on(event: 'metadata', listener: (metadata: Metadata) => void): unknown; cancel(): void };
type Duplex = (metadata: Metadata) => ClientDuplexStream<Message, Message>;
type ServerStream = (request: Message, metadata: Metadata) => ClientReadableStream<Message>;

for (const split of [false, true])
  describe(split ? 'gRPC server before services of another process' : 'gRPC server', () => {
    let server: TestGateway;
    let last: CallContext | undefined;
    const clients: Client[] = [];
    const afterwards: string[] = [];

    before(async () => {
      server = await startTestGateway(
        (registry) => {
          registry.register(DeviceRegistryService, {
            getDevice: async ({ deviceId }, context) => {
              last = context;
              if (deviceId === 'bug') throw new Error('secret internals');
              if (deviceId === 'slow') await once(context.signal, 'abort');
              context.responseMetadata.set('x-extra', 'yes');
              context.afterResponse(() => afterwards.push(deviceId));
              return { deviceId, name: 'pump' };
            },
            updateDevice: async ({ updateMask }) => ({ name: updateMask!.paths.join('+') }),
            exportDevices: async function* () {
              yield { contentType: 'text/csv' };
            },
          });
          registry.register(DeviceLinkService, {
            async *connect(requests, context) {
              last = context;
              yield create(ConnectResponseSchema, { event: { case: 'ready', value: {} } });
              for await (const { event } of requests) {
                if (event.case !== 'response') continue;
                const { correlationId } = event.value;
                yield create(ConnectResponseSchema, { event: { case: 'acknowledgement', value: { correlationId } } });
              }
            },
          });
        },
        { split, environment: { KELLET_TRUSTED_PROXIES: '127.0.0.1, 10.0.0.0/8' } },
      );
    });
    after(async () => {
      for (const client of clients) client.close();
      await server.stop();
    });

    const clientOf = (service: DescService) => {
      const client = new (makeGenericClientConstructor(grpcService(service), service.name))(
        server.grpc,
        credentials.createInsecure(),
      );
      clients.push(client);
      return client as unknown as Record<string, Unary & Duplex>;
    };
    const metadataOf = (entries: Record<string, string>) => {
      const metadata = new Metadata();
      for (const [name, value] of Object.entries(entries)) metadata.set(name, value);
      return metadata;
    };
    const unary = async <S extends DescService>(
      service: S,
      method: keyof S['method'] & string,
      request: MessageInitShape<S['method'][string]['input']>,
      entries: Record<string, string> = {},
      options: { deadline?: number } = {},
    ): Promise<{ reply?: Message; error?: ServiceError; headers: Metadata }> => {
      const client = clientOf(service);
      let headers = new Metadata();
      return new Promise((resolve) => {
        const call = client[service.method[method]!.name]!(
          create(service.method[method]!.input, request),
          metadataOf(entries),
          options,
          (error, reply) => resolve(error ? { error, headers } : { reply, headers }),
        );
        call.on('metadata', (metadata) => (headers = metadata));
      });
    };

    it('returns the same response as REST, with the limit in its metadata', async () => {
      const { reply, headers } = await unary(
        DeviceRegistryService,
        'getDevice',
        { deviceId: 'd7' },
        { authorization: 'Bearer viewer', 'x-request-id': 'mine-2', 'x-tenant-id': 'evil', 'x-colour': 'blue' },
      );
      expect((reply as Device).deviceId).to.equal('d7');
      expect(headers.get('x-extra')).to.deep.equal(['yes']);
      expect(headers.get('x-request-id')).to.deep.equal(['mine-2']);
      expect(headers.get('x-ratelimit-limit')).to.deep.equal(['1000']);
      expect(last).to.include({ tenantId: 'acme', requestId: 'mine-2', address: '127.0.0.1' });
      expect(last!.metadata.get('x-colour')).to.equal('blue');
      expect(last!.metadata.has('x-tenant-id')).to.equal(false);
      expect(last!.metadata.has('authorization')).to.equal(false);
      await new Promise((resolve) => setTimeout(resolve, 20));
      expect(afterwards).to.include('d7');
    });

    for (const [what, request, entries, code, message] of [
      ['no credential', { deviceId: 'd' }, {}, status.UNAUTHENTICATED, 'credential is required'],
      ['an expired token', { deviceId: 'd' }, { authorization: 'Bearer expired' }, status.UNAUTHENTICATED, 'refresh'],
      ['a device on a user method', { deviceId: 'd' }, { 'x-api-key': 'device' }, status.PERMISSION_DENIED, 'device'],
      ['a disallowed address', { deviceId: 'd' }, { 'x-api-key': 'elsewhere' }, status.PERMISSION_DENIED, 'allowlist'],
      [
        'NUL in text',
        { deviceId: 'a\0b' },
        { 'x-api-key': 'viewer' },
        status.INVALID_ARGUMENT,
        'device_id: must not contain NUL',
      ],
      ['an error in the handler', { deviceId: 'bug' }, { 'x-api-key': 'viewer' }, status.INTERNAL, 'internal error'],
    ] as const) {
      it(`returns ${status[code]} for ${what}`, async () => {
        const { error } = await unary(DeviceRegistryService, 'getDevice', request, entries);
        expect(error!.code).to.equal(code);
        expect(error!.details).to.contain(message);
        expect(error!.details).not.to.contain('secret');
        expect(error!.metadata.get('x-request-id')).to.have.length(1);
      });
    }

    it('decodes messages in turns of their tenant', async () => {
      const work = () =>
        unary(DeviceRegistryService, 'getDevice', { deviceId: 'd7' }, { authorization: 'Bearer viewer' });
      expect(await ownersOfTurns(work)).to.deep.equal(['acme']);
      const exporting = () => {
        const request = create(DeviceRegistryService.method.exportDevices.input);
        const client = clientOf(DeviceRegistryService) as unknown as Record<'ExportDevices', ServerStream>;
        return once(client.ExportDevices(request, metadataOf({ authorization: 'Bearer viewer' })).resume(), 'end');
      };
      expect(await ownersOfTurns(exporting)).to.deep.equal(['acme']);
    });

    it('takes 16 KiB of metadata, as much as headers over REST, and ends only the calls with more', async () => {
      const outcome = async (length: number) => {
        // Letters that HTTP/2 does not compress.
        const large = randomBytes(length).toString('base64').slice(0, length);
        const entries = { 'x-api-key': 'viewer', 'x-large': large };
        const { error } = await unary(DeviceRegistryService, 'getDevice', { deviceId: 'd7' }, entries);
        return error?.code ?? 'OK';
      };
      const lengths = [14_000, 17_000, 50_000, 60_000];
      expect(await Promise.all(lengths.map(outcome))).to.deep.equal([
        'OK',
        ...Array.from({ length: 3 }, () => status.RESOURCE_EXHAUSTED),
      ]);
    });

    it('uses the address reported by a trusted proxy', async () => {
      const addressFor = async (entries: Record<string, string>) => {
        await unary(
          DeviceRegistryService,
          'getDevice',
          { deviceId: 'd1' },
          { authorization: 'Bearer viewer', ...entries },
        );
        return last!.address;
      };
      expect(await addressFor({})).to.equal('127.0.0.1');
      expect(await addressFor({ 'x-forwarded-for': '1.1.1.1, 203.0.113.9, 10.0.0.7' })).to.equal('203.0.113.9');
      expect(await addressFor({ forwarded: 'for="[2001:db8::9]:1"' })).to.equal('2001:db8::9');
      // The allowlist of this credential is 192.0.2.0/24.
      const elsewhere = async (forwardedFor: string) => {
        const entries = { authorization: 'Bearer elsewhere', 'x-forwarded-for': forwardedFor };
        return (await unary(DeviceRegistryService, 'getDevice', { deviceId: 'd1' }, entries)).error?.code;
      };
      expect(await elsewhere('192.0.2.44')).to.equal(undefined);
      expect(await elsewhere('192.0.2.44, 203.0.113.9')).to.equal(status.PERMISSION_DENIED);
    });

    it('requires an update_mask that names existing fields', async () => {
      const update = (paths?: string[]) =>
        unary(
          DeviceRegistryService,
          'updateDevice',
          { deviceId: 'd', updateMask: paths && { paths } },
          { 'x-api-key': 'admin' },
        );
      expect((await update()).error!.details).to.equal('update_mask is required');
      expect((await update(['nome'])).error!.details).to.contain('unknown field "nome"');
      expect(((await update(['name', 'tags'])).reply as Device).name).to.equal('name+tags');
    });

    it('returns UNIMPLEMENTED for a method without a handler and for an unknown service', async () => {
      const { error } = await unary(DeviceRegistryService, 'deleteDevice', { deviceId: 'd' }, { 'x-api-key': 'admin' });
      expect(error!.code).to.equal(status.UNIMPLEMENTED);
      const unknown = { ...TelemetryService, typeName: 'kellet.v9.Nothing' } as unknown as DescService;
      const definition = grpcService(unknown);
      const client = new (makeGenericClientConstructor(definition, 'Nothing'))(
        server.grpc,
        credentials.createInsecure(),
      );
      clients.push(client);
      const code = await new Promise((resolve) => {
        (client as unknown as Record<string, Unary>)['GetLatest']!(
          create(TelemetryService.method.getLatest.input),
          new Metadata(),
          {},
          (failure) => resolve(failure?.code),
        );
      });
      expect(code).to.equal(status.UNIMPLEMENTED);
    });

    it('aborts the handler when the deadline passes', async () => {
      const { error } = await unary(
        DeviceRegistryService,
        'getDevice',
        { deviceId: 'slow' },
        { 'x-api-key': 'viewer' },
        { deadline: Date.now() + 200 },
      );
      expect(error!.code).to.equal(status.DEADLINE_EXCEEDED);
      while (!last!.signal.aborted) await new Promise((resolve) => setTimeout(resolve, 10));
    });

    describe('streams', () => {
      const open = (token: string) => {
        const stream = clientOf(DeviceLinkService)['Connect']!(metadataOf({ authorization: `Bearer ${token}` }));
        const events: string[] = [];
        stream.on('data', ({ event }: ConnectResponse) => events.push(event.case!));
        const ended = new Promise<number>((resolve) => {
          stream.on('error', (error: ServiceError) => resolve(error.code));
          stream.on('end', () => resolve(status.OK));
        });
        return { stream, events, ended };
      };
      const response = (correlationId: string) =>
        create(ConnectRequestSchema, { event: { case: 'response', value: { correlationId } } });
      const waitFor = async (events: string[], count: number) => {
        while (events.length < count) await new Promise((resolve) => setTimeout(resolve, 10));
      };

      it('carry messages both ways until the client ends', async () => {
        const { stream, events, ended } = open('device');
        stream.write(response('c1'));
        stream.write(response('c2'));
        await waitFor(events, 3);
        expect(events).to.deep.equal(['ready', 'acknowledgement', 'acknowledgement']);
        stream.end();
        expect(await ended).to.equal(status.OK);
      });

      it('are rejected like any other call', async () => {
        expect(await open('viewer').ended).to.equal(status.PERMISSION_DENIED);
        expect(await open('unknown').ended).to.equal(status.UNAUTHENTICATED);
      });

      it('reject a message with NUL', async () => {
        const { stream, ended } = open('device');
        stream.write(response('a\0'));
        expect(await ended).to.equal(status.INVALID_ARGUMENT);
      });

      it('end when the credential is revoked', async () => {
        server.tokens.set('lost-device', server.tokens.get('device')!);
        const { events, ended } = open('lost-device');
        await waitFor(events, 1);
        server.tokens.delete('lost-device');
        await server.testDatabase.database.pool.query(
          `SELECT pg_notify('kellet_revocations', encode(sha256('lost-device'), 'hex'))`,
        );
        expect(await ended).to.equal(status.UNAUTHENTICATED);
        expect(last!.signal.aborted).to.equal(true);
      });
    });

    it('reports the health of the server and of each service', async () => {
      const check = (service: string) => unary(Health, 'check', { service });
      for (const name of ['', 'kellet.v1.OtaService']) {
        const { reply } = await check(name);
        expect((reply as unknown as { status: Serving }).status).to.equal(Serving.SERVING);
      }
      expect((await check('kellet.v1.Nothing')).error!.code).to.equal(status.NOT_FOUND);
    });

    it('describes itself by reflection', async () => {
      const stream = clientOf(ServerReflection)['ServerReflectionInfo']!(new Metadata());
      const replies: ServerReflectionResponse['messageResponse'][] = [];
      stream.on('data', (reply: ServerReflectionResponse) => replies.push(reply.messageResponse));
      for (const messageRequest of [
        { case: 'listServices', value: '' },
        { case: 'fileContainingSymbol', value: 'kellet.v1.DeviceRegistryService.GetDevice' },
        { case: 'fileByFilename', value: 'google/api/http.proto' },
        { case: 'fileContainingSymbol', value: 'kellet.control.v1.ControlService' },
        { case: 'fileContainingSymbol', value: 'google.rpc.RequestInfo' },
      ] as const) {
        stream.write(create(ServerReflectionRequestSchema, { messageRequest }));
      }
      stream.end();
      await once(stream, 'end');
      const [list, bySymbol, byName, internal, details] = replies;
      const names = list?.case === 'listServicesResponse' ? list.value.service.map(({ name }) => name) : [];
      expect(names).to.include.members(['kellet.v1.OtaService', 'grpc.health.v1.Health']);
      const fileName = (reply: typeof list) =>
        reply?.case === 'fileDescriptorResponse'
          ? fromBinary(FileDescriptorProtoSchema, reply.value.fileDescriptorProto[0]!).name
          : reply?.case;
      expect(fileName(bySymbol)).to.equal('kellet/v1/device_registry.proto');
      expect(fileName(byName)).to.equal('google/api/http.proto');
      expect(fileName(internal)).to.equal('errorResponse');
      expect(fileName(details)).to.equal('google/rpc/error_details.proto');
    });
  });
