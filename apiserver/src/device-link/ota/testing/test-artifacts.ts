// For tests: settings for the intake of artifacts, and artifacts in the content store.
import type { Database } from '../../../platform/database/database.ts';
import type { S3Settings } from '../../../platform/object-store/s3-client.ts';
import { parseOutboundHosts } from '../../../platform/outbound/outbound-addresses.ts';
import { OutboundGuard } from '../../../platform/outbound/outbound-guard.ts';
import type { IntakeSettings } from '../artifacts/artifact-intake.ts';
import { maximumArtifactBytes, publishArtifact, stageArtifact } from '../artifacts/artifact-store.ts';
import { ArtifactStores } from '../artifacts/artifact-stores.ts';
import { ArtifactWriter, writePlaces } from '../artifacts/artifact-writer.ts';

/** No S3 service. */
export const noS3: S3Settings = { endpoint: '', region: '', accessKey: '', secretKey: '' };

/** Returns the stores of a data plane without S3. `name` is the store of new artifacts. */
export const testStores = (name = 'postgres'): ArtifactStores => new ArtifactStores(name, noS3);

/** Settings of an intake that fetches from 127.0.0.1 too. */
export const testIntake = (overrides: Partial<IntakeSettings> = {}): IntakeSettings => ({
  guard: new OutboundGuard(parseOutboundHosts('127.0.0.1')),
  stores: testStores(),
  s3: { settings: noS3, buckets: ['*'], reserved: [] },
  maximumBytes: maximumArtifactBytes,
  transfers: 16,
  transfersPerTenant: 4,
  ...overrides,
});

/** Stores an artifact. */
export async function putArtifact(
  database: Database,
  tenantId: string,
  artifact: { readonly sha256: Buffer; readonly sizeBytes: number },
  content: AsyncIterable<Buffer>,
  stores = testStores(),
): Promise<void> {
  const { sha256, sizeBytes } = artifact;
  const key = await database.tenant(tenantId, (tx) => stageArtifact(tx, tenantId, sizeBytes, stores.current));
  const writer = new ArtifactWriter({ database, stores, places: writePlaces() }, tenantId, key, 0);
  for await (const piece of content) await writer.write(piece);
  await writer.flush();
  await database.tenant(tenantId, (tx) => publishArtifact(tx, tenantId, key, sha256, sizeBytes));
}
