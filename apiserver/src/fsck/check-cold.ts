// Checks that cold files are readable and match the catalogue, and that their points are in their batches.
import { nilId } from '../platform/ids.ts';
import { MissingObjectError } from '../platform/object-store/object-store.ts';
import { listLiveFiles, liveFile } from '../telemetry/cold/cold-file-store.ts';
import { type ColdFile, DamagedFileError } from '../telemetry/cold/cold-files.ts';
import { type Check, type CheckParts, checkPlaces, Findings, nothing, type Outcome } from './check.ts';

const filesAtOnce = 500;

/** Yields a check for each file. */
export async function* coldChecks(parts: CheckParts): AsyncGenerator<Check> {
  for (let after = nilId; ;) {
    const from = after;
    const ids = await parts.database.systemRead((tx) => listLiveFiles(tx, parts.tenantId, from, filesAtOnce));
    for (const id of ids) yield () => checkFile(parts, id);
    if (ids.length < filesAtOnce) return;
    after = ids.at(-1)!;
  }
}

async function checkFile(parts: CheckParts, id: string): Promise<Outcome> {
  const file = await parts.database.systemRead((tx) => liveFile(tx, id));
  // Merged with others since, or past its retention.
  if (!file) return nothing;
  const findings = new Findings();
  try {
    await checkRows(parts, file, findings);
  } catch (error) {
    // A store that cannot be reached leaves the question open.
    if (!(error instanceof DamagedFileError) && !(error instanceof MissingObjectError)) throw error;
    findings.add('cold_file', id, file.tenantId, error.message);
  }
  return { checked: { cold_files: 1, cold_points: file.rows }, findings: findings.all };
}

/** Reads a whole file. The reader checks the number of rows, and each point against its hash. */
async function checkRows({ database, files }: CheckParts, file: ColdFile, findings: Findings): Promise<void> {
  for await (const rows of files.allRows(file)) {
    const { tenantId } = file;
    const problems = await database.system((tx) =>
      checkPlaces(
        tx,
        rows.map((row) => ({ tenantId, batchId: row.batchId, leafIndex: row.leafIndex, dataHash: row.dataHash })),
      ),
    );
    rows.forEach((row, index) => {
      const isWithin =
        row.deviceId >= file.leastDevice &&
        row.deviceId <= file.greatestDevice &&
        row.time >= file.leastTime &&
        row.time <= file.greatestTime;
      const problem = isWithin ? problems[index] : 'the catalogue does not expect it there';
      if (problem === undefined) return;
      findings.add('point', `${row.deviceId}/${row.time}`, tenantId, `in cold file ${file.fileId}: ${problem}`);
    });
  }
}
