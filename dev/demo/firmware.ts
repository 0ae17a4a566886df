// The firmware of the examples: deterministic images of a little over 1 MiB, so that the manifests can contain their
// checksums.
//
//   node dev/demo/firmware.ts FOLDER      writes the images, for example into .kellet/artifacts
import { createHash } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

/** Versions of the weather station's firmware in examples/. */
export const firmwareVersions = ['1.1.0', '1.2.0'] as const;

const blockBytes = 32;
const imageBytes = 1_310_720;

/** Returns the file name of an image. */
export const firmwareFile = (version: string): string => `weather-station-${version}.bin`;

/**
 * Returns the image of a version: a header of two lines, then SHA-256 in counter mode over the header, as
 * incompressible as a real image. The last chunk of a download is shorter than the others.
 */
export function makeFirmware(version: string): Buffer {
  const header = Buffer.from(`KELLET-EXAMPLE-FIRMWARE\nweather-station ${version}\n`);
  const blocks = Array.from({ length: imageBytes / blockBytes }, (_, index) => {
    const counter = Buffer.alloc(4);
    counter.writeUInt32BE(index);
    return createHash('sha256').update(header).update(counter).digest();
  });
  return Buffer.concat([header, ...blocks]);
}

/** Writes all images. Returns their paths. */
export async function writeFirmware(folder: string): Promise<string[]> {
  await mkdir(folder, { recursive: true });
  const paths: string[] = [];
  for (const version of firmwareVersions) {
    const path = join(folder, firmwareFile(version));
    await writeFile(path, makeFirmware(version));
    paths.push(path);
  }
  return paths;
}

if (import.meta.main) {
  const folder = process.argv[2];
  if (!folder) throw new Error('usage: node dev/demo/firmware.ts FOLDER');
  for (const path of await writeFirmware(folder)) console.log(path);
}
