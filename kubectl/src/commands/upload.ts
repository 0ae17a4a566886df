// upload PACKAGE FILE: uploads the artifact of an upload:// package in resumable parts.
import { createHash } from 'node:crypto';
import { type FileHandle, open } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import type { OtaPackage } from '@kellet/crds';
import { numberOption } from '../arguments.ts';
import type { DataPlane } from '../data-plane.ts';
import { type Outcome, PluginError, usageError } from '../errors.ts';
import { formatBar } from '../format/bar.ts';
import { formatBytes } from '../format/duration.ts';
import { painter } from '../format/paint.ts';
import { formatValue, qualifiedName } from '../output.ts';
import type { Session } from '../session.ts';
import type { Terminal } from '../terminal.ts';

/** A package as returned by the API, as far as it is used. */
export interface PackageResponse {
  readonly package_id: string;
  readonly status?: string;
  readonly uploaded_bytes?: number;
}

/** Attempts of one part, and the delay before each further one. */
const attempts = 6;
const delayMilliseconds = 500;

/** Returns the reason for which a file is not the package's artifact, or undefined. */
export function mismatch(
  artifact: OtaPackage['spec']['artifact'],
  file: { size: number; sha256: string },
): string | undefined {
  const { uri, sizeBytes, sha256 } = artifact;
  if (uri !== 'upload://') return `its artifact is fetched from ${uri}, not uploaded`;
  if (file.size === 0) return 'the file is empty';
  if (sizeBytes !== undefined && sizeBytes !== file.size)
    return `the manifest says ${sizeBytes} bytes, but the file has ${file.size}`;
  if (sha256.toLowerCase() !== file.sha256)
    return `the manifest says SHA-256 ${sha256}, but the file has ${file.sha256}`;
  return undefined;
}

/** Returns the next part to upload, with an inclusive last byte, or undefined at the end. */
export function nextPart(offset: number, size: number, partSize: number): { from: number; to: number } | undefined {
  return offset >= size ? undefined : { from: offset, to: Math.min(offset + partSize, size) - 1 };
}

/** Shows the progress of a transfer: a bar on a terminal, otherwise a line every 10 %. */
export class TransferProgress {
  private readonly terminal: Terminal;
  private readonly size: number;
  private shown = -1;

  constructor(terminal: Terminal, size: number) {
    this.terminal = terminal;
    this.size = size;
  }

  /** Updates the number of transferred bytes. */
  at(bytes: number): void {
    const percent = Math.floor((bytes * 100) / this.size);
    const text = `${formatBytes(bytes)} of ${formatBytes(this.size)} (${percent} %)`;
    if (this.terminal.showsProgress) {
      const { hasUnicode, hasColor } = this.terminal;
      const part = { count: bytes, glyph: ['█', '#'], style: 'green' } as const;
      const bar = formatBar([part], this.size, { width: 30, hasUnicode, paint: painter(hasColor) });
      this.terminal.draw(`\r\u001b[K${bar} ${text}${bytes === this.size ? '\n' : ''}`);
    } else if (Math.floor(percent / 10) > this.shown || bytes === this.size) {
      this.shown = Math.floor(percent / 10);
      this.terminal.say(text);
    }
  }
}

/** Runs the command. */
export async function runUpload(session: Session): Promise<Outcome> {
  const { cluster, dataPlane, line, terminal } = session;
  const [name, path] = line.args as [string, string];
  const packageName = nameOfPackage(name);
  const resource = await cluster.read<OtaPackage>('OtaPackage', packageName);
  const partSize = (numberOption(line, 'part-size', 1, 64) ?? 4) * 1024 * 1024;
  const file = await open(path).catch((error: Error) => {
    throw new PluginError('failed', `${path} cannot be read: ${error.message}`);
  });
  try {
    const size = (await file.stat()).size;
    const wrong = mismatch(resource.spec.artifact, { size, sha256: await sha256Of(file) });
    if (wrong) throw new PluginError('precondition', `${path} is not the artifact of ${packageName}: ${wrong}`);
    const packageId = resource.status?.packageId;
    if (!packageId) {
      const hint = `see: kubectl kellet status otapackage/${packageName}`;
      throw new PluginError(
        'precondition',
        `OtaPackage ${packageName} has not been applied to the data plane yet`,
        hint,
      );
    }
    const response = await send(dataPlane, file, { packageId, size, partSize, terminal });
    const format = session.option('output');
    const qualified = qualifiedName('OtaPackage', packageName);
    if (format === 'json' || format === 'yaml') terminal.write(formatValue(response, format));
    else terminal.write(format === 'name' ? `${qualified}\n` : `${qualified} ${response.status}\n`);
    return 'ok';
  } finally {
    await file.close();
  }
}

interface Transfer {
  readonly packageId: string;
  readonly size: number;
  readonly partSize: number;
  readonly terminal: Terminal;
}

async function send(dataPlane: DataPlane, file: FileHandle, transfer: Transfer): Promise<PackageResponse> {
  const { packageId, size, partSize, terminal } = transfer;
  const read = () => dataPlane.call<PackageResponse>('GET', `ota/packages/${packageId}`);
  let state = await read();
  if (state.status === 'available') return state;
  let offset = state.uploaded_bytes ?? 0;
  const progress = new TransferProgress(terminal, size);
  if (offset > 0) terminal.say(`resuming at ${formatBytes(offset)}`);
  let failures = 0;
  for (;;) {
    // Without a part, all bytes are held and only the completion failed.
    const part = nextPart(offset, size, partSize);
    const bytes = Buffer.alloc(part ? part.to - part.from + 1 : 0);
    if (part) await file.read(bytes, 0, bytes.length, part.from);
    const headers = { 'content-range': `bytes ${part ? `${part.from}-${part.to}` : '*'}/${size}` };
    try {
      state = await dataPlane.call<PackageResponse>('PUT', `ota/packages/${packageId}/artifact`, {
        body: bytes,
        headers,
      });
      failures = 0;
    } catch (error) {
      // Part of the data may have arrived before the connection was lost: query how much.
      const canGoOn = error instanceof PluginError && error.outcome === 'unavailable';
      if (!canGoOn || ++failures >= attempts) throw error;
      await sleep(delayMilliseconds * 2 ** (failures - 1));
      state = await read();
    }
    if (state.status === 'available' || (!part && failures === 0)) break;
    offset = state.uploaded_bytes ?? 0;
    progress.at(offset);
  }
  progress.at(size);
  return state;
}

function nameOfPackage(text: string): string {
  const [kind, name] = text.split('/') as [string, string | undefined];
  if (name === undefined) return kind;
  if (!/^(otapackages?(\.kellet\.dev)?|otapkg|packages?)$/i.test(kind))
    throw usageError(`${kind} is not a package: give the name of an OtaPackage`);
  return name;
}

async function sha256Of(file: FileHandle): Promise<string> {
  const hash = createHash('sha256');
  const buffer = Buffer.alloc(1024 * 1024);
  for (let position = 0; ;) {
    const { bytesRead } = await file.read(buffer, 0, buffer.length, position);
    if (bytesRead === 0) return hash.digest('hex');
    hash.update(buffer.subarray(0, bytesRead));
    position += bytesRead;
  }
}
