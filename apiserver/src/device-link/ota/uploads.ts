// Artifacts that are uploaded (`upload://`): received in parts and in order, kept as they come, and checked as a whole before
// the package can be used. What is held of an upload is committed megabyte by megabyte, so that a lost connection costs no more.
import { createHash } from 'node:crypto';
import type { UploadArtifactRequest } from '@kellet/proto/es/kellet/v1/ota_pb';
import { notifyChanged } from '../../control/changes.ts';
import type { Database, Transaction } from '../../platform/database.ts';
import { failedPrecondition, invalidArgument, KelletError } from '../../platform/errors.ts';
import type { CallContext } from '../../platform/rpc.ts';
import { ArtifactError, maximumArtifactBytes, uploadUri } from './artifact-fetch.ts';
import { inChunks, putArtifact } from './artifact-store.ts';
import { getPackage, lockPackage, setPackageStatus, type PackageRow } from './package-store.ts';
import { uploadRange, type UploadRange } from './upload-range.ts';
import { appendPieces, dropAbandonedUploads, readPieces, resetUpload } from './upload-store.ts';

/** Pieces written by one transaction: a megabyte, which is also what an upload holds in memory. */
const piecesPerWrite = 16;

/** Seconds after which an upload that nobody goes on with is forgotten. */
const abandonedAfterSeconds = 24 * 60 * 60;

const aborted = (): KelletError =>
  new KelletError('ABORTED', 'another upload of this artifact is under way: ask how far it is and go on from there');

/** Decides whether a package whose artifact is in the content store may be used. */
export type Judge = (tx: Transaction, tenantId: string, packageId: string) => Promise<void>;

/** Receives artifacts. */
export class Uploads {
  private readonly database: Database;
  private readonly judge: Judge;

  constructor(database: Database, judge: Judge) {
    this.database = database;
    this.judge = judge;
  }

  /**
   * Takes the bytes of one request and answers the package as it then is. Throws NOT_FOUND; FAILED_PRECONDITION for a package
   * that is not uploaded, or for a part that leaves a gap; INVALID_ARGUMENT for more bytes than declared and for an artifact
   * that is not the declared one; ABORTED when another request goes on with the same upload.
   */
  async receive(requests: AsyncIterable<UploadArtifactRequest>, context: CallContext): Promise<PackageRow> {
    const { tenantId } = context;
    const iterator = requests[Symbol.asyncIterator]();
    const first = await iterator.next();
    if (first.done) throw invalidArgument('package_id is required');
    const { packageId } = first.value;
    const range = uploadRange(context.metadata.get('content-range'), first.value);
    const content = contentOf(first.value, iterator);

    const row = await this.begin(tenantId, packageId, range);
    const total = totalOf(row, range);
    if (row.status !== 'uploading') {
      await compare(row, range, content);
      return row;
    }
    const held = await this.append(row, range, total, content);
    const isComplete = range.start === undefined || held === total;
    return isComplete ? this.complete(row, held) : { ...row, uploaded_bytes: BigInt(held) };
  }

  /** Forgets what nobody has gone on with for a day; who then does is told to begin again. Answers how many uploads it was. */
  dropAbandoned(): Promise<number> {
    return this.database.system((tx) => dropAbandonedUploads(tx, abandonedAfterSeconds));
  }

  /** The package, ready to take the range; what an earlier attempt left is dropped when the whole artifact comes. */
  private begin(tenantId: string, packageId: string, range: UploadRange): Promise<PackageRow> {
    return this.database.tenant(tenantId, async (tx) => {
      const { package_id } = await getPackage(tx, tenantId, packageId);
      const row = (await lockPackage(tx, tenantId, package_id))!;
      if (row.artifact_uri !== uploadUri) {
        throw failedPrecondition(
          `the artifact of this package is not uploaded: its artifact_uri is ${row.artifact_uri}`,
        );
      }
      if (row.status === 'available' || row.status === 'deprecated') return row;
      if (row.checksum_verified) throw failedPrecondition(`the package is rejected: ${row.message}`);
      if (row.status === 'rejected' || range.start === undefined) {
        await resetUpload(tx, tenantId, package_id);
        if (row.status === 'rejected') await announce(tx, row);
      }
      const ready = await getPackage(tx, tenantId, package_id);
      if ((range.start ?? 0) > Number(ready.uploaded_bytes)) {
        throw failedPrecondition(`the next part begins at byte ${ready.uploaded_bytes}`);
      }
      return ready;
    });
  }

  /** Keeps what is new of the content. Answers how many bytes of the artifact are held then. */
  private async append(
    row: PackageRow,
    range: UploadRange,
    total: number | undefined,
    content: AsyncIterable<Buffer>,
  ): Promise<number> {
    const limit = range.end ?? total ?? maximumArtifactBytes;
    let held = Number(row.uploaded_bytes);
    let at = range.start ?? 0;
    let pieces: Buffer[] = [];
    const flush = async (): Promise<void> => {
      if (pieces.length === 0) return;
      const written = pieces;
      pieces = [];
      const isInTime = await this.database.tenant(row.tenant_id, (tx) =>
        appendPieces(tx, row.tenant_id, row.package_id, held, written),
      );
      if (!isInTime) throw aborted();
      held += written.reduce((sum, piece) => sum + piece.length, 0);
    };
    try {
      for await (const piece of inChunks(content)) {
        const fresh = piece.subarray(Math.max(0, Math.min(piece.length, Number(row.uploaded_bytes) - at)));
        at += piece.length;
        if (at > limit) throw invalidArgument(`the body goes on behind byte ${limit}, where it should end`);
        if (fresh.length > 0) pieces.push(fresh);
        if (pieces.length === piecesPerWrite) await flush();
      }
    } finally {
      await flush();
    }
    if (range.end !== undefined && at !== range.end) {
      throw invalidArgument(`the body has ${at - range.start!} bytes, Content-Range says ${range.end - range.start!}`);
    }
    if (range.start === undefined && total !== undefined && at !== total) {
      throw invalidArgument(`the artifact has ${at} bytes, size_bytes says ${total}`);
    }
    return held;
  }

  /** Copies what was received into the content store, if it is what was declared, and judges the package. */
  private async complete({ tenant_id: tenantId, package_id: packageId, sha256 }: PackageRow, size: number) {
    const { database } = this;
    const content = async function* (): AsyncIterable<Buffer> {
      const hash = createHash('sha256');
      for (let at = 0; ;) {
        const start = at;
        const pieces = await database.tenant(tenantId, (tx) => readPieces(tx, tenantId, packageId, start));
        if (pieces.length === 0) break;
        for (const piece of pieces) {
          hash.update(piece);
          at += piece.length;
          yield piece;
        }
      }
      const digest = hash.digest();
      if (digest.equals(sha256)) return;
      throw new ArtifactError(`checksum mismatch: the artifact's SHA-256 is ${digest.toString('hex')}`, true);
    };
    const mismatch = await putArtifact(database, tenantId, sha256, size, content()).then(
      () => undefined,
      (error: unknown) => {
        if (error instanceof ArtifactError) return error;
        throw error;
      },
    );
    const row = await database.tenant(tenantId, async (tx) => {
      const locked = await lockPackage(tx, tenantId, packageId);
      // Somebody else began again, or was faster.
      if (locked?.status !== 'uploading' || Number(locked.uploaded_bytes) !== size) {
        if (locked?.status === 'available') return locked;
        throw aborted();
      }
      await resetUpload(tx, tenantId, packageId);
      if (mismatch) {
        await setPackageStatus(tx, tenantId, packageId, {
          status: 'rejected',
          checksumVerified: false,
          signatureVerified: false,
          message: mismatch.message,
        });
      } else {
        await this.judge(tx, tenantId, packageId);
      }
      await announce(tx, locked);
      return getPackage(tx, tenantId, packageId);
    });
    if (row.status === 'rejected') throw invalidArgument(row.message);
    return row;
  }
}

/** The bytes of an upload. They end early with an error when the client goes away. */
async function* contentOf(
  first: UploadArtifactRequest,
  rest: AsyncIterator<UploadArtifactRequest>,
): AsyncIterable<Buffer> {
  for (let next: IteratorResult<UploadArtifactRequest> = { value: first }; !next.done; next = await rest.next()) {
    const data = next.value.content?.data;
    if (data && data.length > 0) yield Buffer.from(data.buffer, data.byteOffset, data.byteLength);
  }
}

/** Size of the whole artifact as the package or the request states it; undefined when neither does. */
function totalOf(row: PackageRow, range: UploadRange): number | undefined {
  const declared = Number(row.size_bytes);
  if (declared !== 0 && range.total !== undefined && range.total !== declared) {
    throw invalidArgument(`the artifact has ${declared} bytes by its size_bytes, ${range.total} by the request`);
  }
  const total = declared || range.total;
  const greatest = total ?? maximumArtifactBytes;
  if (greatest > maximumArtifactBytes || (range.start ?? 0) > greatest || (range.end ?? 0) > greatest) {
    throw invalidArgument(`an artifact has at most ${Math.min(greatest, maximumArtifactBytes)} bytes here`);
  }
  return total;
}

/** Reads an upload of an artifact that is there already. Another whole artifact than that is INVALID_ARGUMENT. */
async function compare(row: PackageRow, range: UploadRange, content: AsyncIterable<Buffer>): Promise<void> {
  const hash = createHash('sha256');
  let at = range.start ?? 0;
  for await (const piece of content) {
    at += piece.length;
    if (at > Number(row.size_bytes)) throw invalidArgument(`the artifact has ${row.size_bytes} bytes`);
    hash.update(piece);
  }
  if (range.start === undefined && !hash.digest().equals(row.sha256)) {
    throw invalidArgument('checksum mismatch: the package has another artifact already');
  }
}

/** Tells the operator that the package changed. */
async function announce(tx: Transaction, row: PackageRow): Promise<void> {
  const { rows } = await tx.query<{ namespace: string }>(`SELECT namespace FROM tenants WHERE tenant_id = $1`, [
    row.tenant_id,
  ]);
  if (rows[0]) await notifyChanged(tx, 'OtaPackage', row.tenant_id, rows[0].namespace, row.name);
}
