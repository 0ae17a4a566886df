// The command kellet-apiserver artifacts: shows where artifacts are stored, and moves them.
import type { Database } from '../../../platform/database/database.ts';
import { KelletError } from '../../../platform/errors.ts';
import { storeProblem } from '../../../platform/object-store/open-store.ts';
import type { Logger } from '../../../platform/observability/logger.ts';
import { ArtifactMove } from './artifact-move.ts';
import { removeRemains } from './artifact-remains.ts';
import { countByStore, listArtifactsElsewhere } from './artifact-store.ts';
import { type ArtifactStores, parseStoreName, storeName } from './artifact-stores.ts';

export const artifactsUsage = `usage: kellet-apiserver artifacts status
       kellet-apiserver artifacts move [--to postgres|file:///FOLDER|s3://BUCKET/PREFIX]

  status  prints what the stores hold
  move    moves all artifacts to the configured store, or to another one; each is verified before the old copy is deleted`;

const artifactsPerPage = 100;
const progressMilliseconds = 5000;
const never = new AbortController().signal;

/** Dependencies of the command. */
export interface ArtifactsCommandParts {
  readonly database: Database;
  readonly stores: ArtifactStores;
  readonly logger: Logger;
  readonly write: (line: string) => void;
}

/**
 * Runs `kellet-apiserver artifacts …` and returns the exit code: 0 if no artifact is left in another store, 1 if one is, 2 for bad
 * usage.
 */
export async function runArtifactsCommand(args: readonly string[], parts: ArtifactsCommandParts): Promise<number> {
  try {
    const [verb, ...rest] = args.flatMap((word) => (word.startsWith('--to=') ? ['--to', word.slice(5)] : [word]));
    if (verb === 'status' && rest.length === 0) return await showStores(parts);
    const target = rest.length === 2 && rest[0] === '--to' ? rest[1] : undefined;
    if (verb === 'move' && rest.length === 0) return await moveAll(parts.stores.current, parts);
    if (verb === 'move' && target !== undefined) {
      const problem = target === 'postgres' ? undefined : storeProblem(target);
      if (problem === undefined) return await moveAll(parseStoreName(target), parts);
      parts.write(`--to ${problem}, or be postgres`);
      return 2;
    }
    parts.write(artifactsUsage);
    return 2;
  } finally {
    parts.stores.close();
  }
}

async function showStores({ database, stores, write }: ArtifactsCommandParts): Promise<number> {
  const counts = await database.system((tx) => countByStore(tx));
  write(`new artifacts: ${storeName(stores.current)}`);
  for (const { store, artifacts, bytes, arriving } of counts) {
    write(`${storeName(store)}: ${artifacts} artifacts, ${formatBytes(bytes)}, ${arriving} arriving`);
  }
  return 0;
}

async function moveAll(target: string, parts: ArtifactsCommandParts): Promise<number> {
  const { database, stores, logger, write } = parts;
  const before = await database.system((tx) => countByStore(tx));
  const elsewhere = before.filter(({ store }) => store !== target);
  const total = elsewhere.reduce((sum, { bytes }) => sum + bytes, 0);
  const count = elsewhere.reduce((sum, { artifacts }) => sum + artifacts, 0);
  write(`moving ${count} artifacts, ${formatBytes(total)}, to ${storeName(target)}`);
  const move = new ArtifactMove(database, stores, target);
  let [moved, done, failed, shownAt] = [0, 0, 0, Date.now()];
  let after: { tenantId: string; sha256: Buffer } | undefined;
  for (;;) {
    const from = after;
    const page = await database.system((tx) => listArtifactsElsewhere(tx, target, from, artifactsPerPage));
    if (page.length === 0) break;
    for (const artifact of page) {
      const name = `${artifact.sha256.toString('hex')} of ${artifact.tenantId}`;
      const outcome = await move
        .move(artifact, (bytes) => {
          if (Date.now() < shownAt + progressMilliseconds) return;
          shownAt = Date.now();
          write(`${formatBytes(done + bytes)} of ${formatBytes(total)}, ${moved} of ${count} artifacts`);
        })
        .catch((error: unknown) => {
          if (!(error instanceof KelletError)) throw error;
          logger.warn({ err: error, artifact: name }, 'the artifact could not be moved');
          return error.message;
        });
      if (outcome === 'moved') {
        moved += 1;
        done += artifact.sizeBytes;
        write(`moved ${name}, ${formatBytes(artifact.sizeBytes)}, from ${storeName(artifact.store)}`);
      } else if (outcome !== 'gone') {
        failed += 1;
        const why = outcome === 'damaged' ? 'its bytes do not have its checksum; nothing was changed' : outcome;
        write(`not moved: ${name}: ${why}`);
      }
    }
    after = page.at(-1);
  }
  await removeRemains(database, stores, logger, never);
  const left = (await database.system((tx) => countByStore(tx))).filter(({ store }) => store !== target);
  const arriving = left.reduce((sum, one) => sum + one.arriving, 0);
  write(`${moved} moved, ${failed} failed`);
  if (arriving > 0) write(`${arriving} still arriving in another store: run the command again when they have arrived`);
  if (target !== stores.current) {
    write(`new artifacts are still stored in ${storeName(stores.current)}: set KELLET_ARTIFACT_STORE`);
  }
  return failed > 0 || arriving > 0 ? 1 : 0;
}

/** Formats a number of bytes in binary units. */
function formatBytes(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const exponent = bytes < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10));
  return `${(bytes / 1024 ** exponent).toFixed(exponent === 0 ? 0 : 1)} ${units[exponent]}`;
}
