// For tests: settings of the intake, and artifacts in the content store.
import type { Database } from '../../../platform/database/database.ts';
import { parseOutboundHosts } from '../../../platform/outbound/outbound-addresses.ts';
import { OutboundGuard } from '../../../platform/outbound/outbound-guard.ts';
import type { IntakeSettings } from '../packages/artifact-intake.ts';
import {
  ArtifactWriter,
  maximumArtifactBytes,
  publishArtifact,
  stageArtifact,
  writePlaces,
} from '../packages/artifact-store.ts';

/** Settings of an intake that fetches from 127.0.0.1 too. */
export const testIntake = (overrides: Partial<IntakeSettings> = {}): IntakeSettings => ({
  guard: new OutboundGuard(parseOutboundHosts('127.0.0.1')),
  maximumBytes: maximumArtifactBytes,
  transfers: 16,
  transfersPerTenant: 4,
  ...overrides,
});

/** Stores an artifact. */
export async function putArtifact(
  database: Database,
  tenantId: string,
  sha256: Buffer,
  sizeBytes: number,
  content: AsyncIterable<Buffer>,
): Promise<void> {
  const key = await database.tenant(tenantId, (tx) => stageArtifact(tx, tenantId, sizeBytes));
  const writer = new ArtifactWriter(database, writePlaces(), tenantId, key, 0);
  for await (const piece of content) await writer.write(piece);
  await writer.flush();
  await database.tenant(tenantId, (tx) => publishArtifact(tx, tenantId, key, sha256, sizeBytes));
}
