// Checks the size and SHA-256 of artifacts in every store, and that packages have their artifacts.
import { createHash } from 'node:crypto';
import { KelletError } from '../platform/errors.ts';
import { MissingObjectError } from '../platform/object-store/object-store.ts';
import { type Check, type CheckParts, Findings, nothing, type Outcome, snapshot } from './check.ts';

const artifactsAtOnce = 200;

interface ArtifactRow {
  tenant_id: string;
  sha256: Buffer;
  size_bytes: bigint;
}

/** Yields a check for each artifact, and one for packages. */
export async function* artifactChecks(parts: CheckParts): AsyncGenerator<Check> {
  let tenantId = '';
  let sha256: Buffer = Buffer.alloc(0);
  for (;;) {
    const after = [tenantId, sha256];
    const { rows } = await parts.database.systemRead((tx) =>
      tx.query<ArtifactRow>(
        `SELECT tenant_id, sha256, size_bytes FROM artifacts
         WHERE (tenant_id, sha256) > ($1, $2) AND NOT staged AND ($3::text IS NULL OR tenant_id = $3)
         ORDER BY tenant_id, sha256 LIMIT ${artifactsAtOnce}`,
        [...after, parts.tenantId ?? null],
      ),
    );
    for (const row of rows) yield () => checkArtifact(parts, row);
    if (rows.length < artifactsAtOnce) break;
    ({ tenant_id: tenantId, sha256 } = rows.at(-1)!);
  }
  yield () => checkPackages(parts);
}

async function checkArtifact(parts: CheckParts, row: ArtifactRow): Promise<Outcome> {
  const { tenant_id: tenantId, sha256 } = row;
  const size = Number(row.size_bytes);
  const problem = await contentProblem(parts, tenantId, sha256, size);
  if (problem !== undefined && !(await isStored(parts, tenantId, sha256))) return nothing;
  const findings = new Findings();
  if (problem !== undefined) findings.add('artifact', sha256.toString('hex'), tenantId, problem);
  return { checked: { artifacts: 1, artifact_bytes: size }, findings: findings.all };
}

async function contentProblem(
  { artifacts }: CheckParts,
  tenantId: string,
  sha256: Buffer,
  size: number,
): Promise<string | undefined> {
  const hash = createHash('sha256');
  let bytes = 0;
  try {
    for await (const piece of artifacts.pieces(tenantId, sha256, size)) {
      hash.update(piece);
      bytes += piece.length;
    }
    const rest = await artifacts.read(tenantId, sha256, size, 1);
    if (rest.length > 0) return `it has more than ${size} bytes`;
  } catch (error) {
    // Bytes that are missing are damage; a store that cannot be reached leaves the question open.
    if (!(error instanceof KelletError)) throw error;
    if (error.cause !== undefined && !(error.cause instanceof MissingObjectError)) throw error;
    return `it has ${bytes} of its ${size} bytes`;
  }
  return hash.digest().equals(sha256) ? undefined : 'its bytes do not have its checksum';
}

async function isStored({ database }: CheckParts, tenantId: string, sha256: Buffer): Promise<boolean> {
  const { rows } = await database.systemRead((tx) =>
    tx.query('SELECT FROM artifacts WHERE tenant_id = $1 AND sha256 = $2', [tenantId, sha256]),
  );
  return rows.length > 0;
}

function checkPackages({ database, tenantId }: CheckParts): Promise<Outcome> {
  return snapshot(database, async (tx) => {
    const { rows } = await tx.query<{ packages: number }>(
      `SELECT count(*)::int4 AS packages FROM ota_packages
       WHERE deleted_at IS NULL AND status IN ('available', 'deprecated') AND ($1::text IS NULL OR tenant_id = $1)`,
      [tenantId ?? null],
    );
    const { rows: lost } = await tx.query<{ tenant_id: string; package_id: string }>(
      `SELECT tenant_id, package_id FROM ota_packages p
       WHERE deleted_at IS NULL AND status IN ('available', 'deprecated') AND ($1::text IS NULL OR tenant_id = $1)
         AND NOT EXISTS (SELECT FROM artifacts a WHERE a.tenant_id = p.tenant_id AND a.sha256 = p.sha256)
       ORDER BY tenant_id, package_id LIMIT 1000`,
      [tenantId ?? null],
    );
    const findings = new Findings();
    for (const row of lost) findings.add('package', row.package_id, row.tenant_id, 'its artifact is not stored');
    return { checked: { packages: rows[0]!.packages }, findings: findings.all };
  });
}
