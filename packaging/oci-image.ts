// Writes images in the OCI image layout (https://github.com/opencontainers/image-spec), which containerd, kind, skopeo and
// container engines load. Everything in it follows from the files, so that two builds of the same files are one image.
import { createHash } from 'node:crypto';
import { createReadStream, createWriteStream, mkdirSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { createGzip } from 'node:zlib';
import type { Architecture } from './architecture.ts';
import { writeTar } from './archive.ts';

/** What a container runs by default; the `config` object of the OCI image configuration. */
export interface ImageSettings {
  User: string;
  WorkingDir: string;
  Env: string[];
  Entrypoint?: string[];
  Cmd?: string[];
  Labels: Record<string, string>;
}

interface Descriptor {
  mediaType: string;
  digest: string;
  size: number;
}

/** An image for one architecture: the content of its layers, lowest first. */
export interface PlatformImage {
  architecture: Architecture;
  /** One folder a layer. */
  layers: string[];
  settings: ImageSettings;
}

/**
 * Writes the images, one for each architecture, as a tar file with the reference `name` (repository:tag). `created` is
 * an RFC 3339 time. Returns the digest of the index. `work` must be empty.
 */
export async function writeImage(
  name: string,
  images: readonly PlatformImage[],
  created: string,
  work: string,
  target: string,
): Promise<string> {
  const blobs = join(work, 'blobs/sha256');
  mkdirSync(blobs, { recursive: true });
  const manifests = [];
  for (const image of images) {
    const platform = { architecture: image.architecture, os: 'linux' };
    manifests.push({ ...(await writePlatform(image, created, work)), platform });
  }
  const index = writeDocument(work, 'application/vnd.oci.image.index.v1+json', {
    schemaVersion: 2,
    mediaType: 'application/vnd.oci.image.index.v1+json',
    manifests,
  });
  const annotations = {
    'io.containerd.image.name': name,
    'org.opencontainers.image.ref.name': name.slice(name.lastIndexOf(':') + 1),
  };
  writeFileSync(join(work, 'index.json'), JSON.stringify({ schemaVersion: 2, manifests: [{ ...index, annotations }] }));
  writeFileSync(join(work, 'oci-layout'), JSON.stringify({ imageLayoutVersion: '1.0.0' }));
  writeTar(work, target, ['oci-layout', 'index.json', 'blobs']);
  return index.digest;
}

async function writePlatform(image: PlatformImage, created: string, work: string): Promise<Descriptor> {
  const layers: Descriptor[] = [];
  const contents: string[] = [];
  for (const folder of image.layers) {
    const archive = join(work, 'layer.tar');
    writeTar(folder, archive, ['.']);
    contents.push(`sha256:${await digestOf(archive)}`);
    const compressed = `${archive}.gz`;
    await pipeline(createReadStream(archive), createGzip({ level: 6 }), createWriteStream(compressed));
    rmSync(archive);
    layers.push(await keepBlob(work, compressed, 'application/vnd.oci.image.layer.v1.tar+gzip'));
  }
  const configuration = writeDocument(work, 'application/vnd.oci.image.config.v1+json', {
    created,
    architecture: image.architecture,
    os: 'linux',
    config: image.settings,
    rootfs: { type: 'layers', diff_ids: contents },
    history: contents.map(() => ({ created, created_by: 'make image' })),
  });
  return writeDocument(work, 'application/vnd.oci.image.manifest.v1+json', {
    schemaVersion: 2,
    mediaType: 'application/vnd.oci.image.manifest.v1+json',
    config: configuration,
    layers,
  });
}

function writeDocument(work: string, mediaType: string, document: unknown): Descriptor {
  const text = JSON.stringify(document);
  const digest = createHash('sha256').update(text).digest('hex');
  writeFileSync(join(work, 'blobs/sha256', digest), text);
  return { mediaType, digest: `sha256:${digest}`, size: Buffer.byteLength(text) };
}

async function keepBlob(work: string, file: string, mediaType: string): Promise<Descriptor> {
  const digest = await digestOf(file);
  const { size } = statSync(file);
  renameSync(file, join(work, 'blobs/sha256', digest));
  return { mediaType, digest: `sha256:${digest}`, size };
}

async function digestOf(file: string): Promise<string> {
  const hash = createHash('sha256');
  await pipeline(createReadStream(file), hash);
  return hash.digest('hex');
}
