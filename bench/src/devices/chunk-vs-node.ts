// chunk-vs-node: chunks of 64 KiB per second of CPU time, by devices that download a package from a complete apiserver whose
// artifacts are in PostgreSQL. Compared with bare node:http that reads the same bytes from a file.
import { createHash, randomBytes } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  chunkBytes,
  publishArtifact,
  stageArtifact,
} from '../../../apiserver/src/device-link/ota/artifacts/artifact-store.ts';
import { ArtifactStores } from '../../../apiserver/src/device-link/ota/artifacts/artifact-stores.ts';
import { ArtifactWriter, writePlaces } from '../../../apiserver/src/device-link/ota/artifacts/artifact-writer.ts';
import { Database } from '../../../apiserver/src/platform/database/database.ts';
import { newId } from '../../../apiserver/src/platform/ids.ts';
import { createLogger } from '../../../apiserver/src/platform/observability/logger.ts';
import { cpuMicroseconds } from '../cpu-time.ts';
import { type Environment, startEnvironment } from '../environment.ts';
import { costOf } from '../gateway/cost.ts';
import { getRequest, HttpLoad, type Load } from '../gateway/http-load.ts';
import { MeasuredServer } from '../gateway/measured-server.ts';
import { type Benchmark } from '../harness.ts';
import { mintKeys } from '../streams/device-keys.ts';

const devices = 100;
const chunks = 64;
/** Chunks that are served before the first round. */
const warmUpChunks = 20_000;
/** Connections of the result, and of its remark on a smaller number of devices at a time. */
const [many, few] = [64, 16];

/** The benchmark. */
export const chunkVsNode: Benchmark = {
  name: 'chunk-vs-node',
  unit: 'chunks/s per core',
  baseline: 'node:http, a file',
  rounds: 5,
  prepare: async () => {
    const bytes = randomBytes(chunks * chunkBytes);
    const folder = await mkdtemp(join(tmpdir(), 'kellet-bench-'));
    const file = join(folder, 'artifact');
    await writeFile(file, bytes);
    const node = await MeasuredServer.start('../devices/file-server.ts', { file });
    const environment = await startEnvironment((line) => console.error(line), devices);
    const packageId = await assignPackage(environment, bytes);
    const keys = await mintKeys(environment);
    const generator = new HttpLoad();
    const load = (at: { host: string; port: number }, requests: string[]): Load => ({
      ...at,
      ...{ requests, connections: many, seconds: 3 },
    });
    const offsets = Array.from({ length: chunks }, (_, index) => index * chunkBytes);
    const bare = load(
      { host: '127.0.0.1', port: node.port },
      offsets.map((offset) => getRequest(`/${offset}`, {})),
    );
    const whole = load(
      environment.rest,
      environment.deviceIds.flatMap((id, index) =>
        offsets
          .filter((_, at) => at % 8 === index % 8)
          .map((offset) =>
            getRequest(`/api/v1/devices/${id}/ota/chunk?package_id=${packageId}&offset=${offset}`, {
              'X-API-Key': keys[index]!,
              Accept: 'application/octet-stream',
            }),
          ),
      ),
    );
    // The apiserver's code is compiled by the number of requests, not by time, of which a busy machine has fewer.
    for (let served = 0; served < warmUpChunks;) served += (await generator.run(whole)).replies;
    let serverAlone = NaN;
    let remarks = {};
    let bareByFew = NaN;
    return {
      baseline: async () => {
        const perCore = async (at: Load) => 1e6 / (await costOf(generator, at, [() => node.cpu()])).microseconds[0]!;
        bareByFew = await perCore({ ...bare, connections: few });
        return perCore(bare);
      },
      ours: async () => {
        const processes = ['apiserver', 'postgres'].map((name) => () => cpuMicroseconds(environment.pids[name]!));
        const { microseconds, perSecond, p99 } = await costOf(generator, whole, processes);
        const [server, postgres] = microseconds as [number, number];
        serverAlone = 1e6 / server;
        const byFew = (await costOf(generator, { ...whole, connections: few }, processes)).microseconds;
        const perCoreByFew = 1e6 / (byFew[0]! + byFew[1]!);
        remarks = {
          ...{ 'chunks per second': perSecond, 'p99 ms': p99 },
          ...{ 'apiserver µs per chunk': server, 'PostgreSQL µs per chunk': postgres },
          [`${few} connections, chunks/s per core`]: perCoreByFew,
          [`${few} connections, ratio`]: perCoreByFew / bareByFew,
        };
        return 1e6 / (server + postgres);
      },
      beside: { 'the apiserver without PostgreSQL': async () => serverAlone },
      remarks: () => remarks,
      close: async () => {
        generator.close();
        node.close();
        await environment.close();
        await rm(folder, { recursive: true });
      },
    };
  },
};

/** Assigns a package with these bytes to every device, and returns its id. */
async function assignPackage({ databaseUrl, tenantId, deviceIds }: Environment, bytes: Buffer): Promise<string> {
  const database = new Database(databaseUrl, createLogger('silent'));
  const packageId = newId();
  const sha256 = createHash('sha256').update(bytes).digest();
  try {
    const stores = new ArtifactStores('postgres', { endpoint: '', region: '', accessKey: '', secretKey: '' });
    const key = await database.tenant(tenantId, (tx) => stageArtifact(tx, tenantId, bytes.length, stores.current));
    const writer = new ArtifactWriter({ database, stores, places: writePlaces() }, tenantId, key, 0);
    await writer.write(bytes);
    await writer.flush();
    await database.tenant(tenantId, (tx) => publishArtifact(tx, tenantId, key, sha256, bytes.length));
    await database.system(async (tx) => {
      await tx.query(
        `INSERT INTO ota_packages (tenant_id, package_id, name, display_name, type, version, artifact_uri, sha256, signature,
           size_bytes, status, checksum_verified)
         VALUES ($1, $2, 'two', 'two', 'fw', '2.0.0', 'https://x', $3, '', $4, 'available', true)`,
        [tenantId, packageId, sha256, bytes.length],
      );
      await tx.query(
        `INSERT INTO ota_assignments (tenant_id, device_id, slot, package_id)
         SELECT $1, device_id, 'override', $2 FROM unnest($3::uuid[]) AS d (device_id)`,
        [tenantId, packageId, deviceIds],
      );
    });
  } finally {
    await database.close();
  }
  return packageId;
}
