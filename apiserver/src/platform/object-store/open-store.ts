// Opens a store by its URL: a folder or S3.
import { FolderStore } from './folder-store.ts';
import type { ObjectStore } from './object-store.ts';
import { S3Client, type S3Settings } from './s3-client.ts';
import { parseS3Location } from './s3-location.ts';
import { S3Store } from './s3-store.ts';

/** Returns what is wrong with the URL of a store, or undefined: file:///FOLDER or s3://BUCKET[/PREFIX]. */
export function storeProblem(url: string): string | undefined {
  if (url.startsWith('s3://')) {
    const location = parseS3Location(url);
    return typeof location === 'string' ? location : undefined;
  }
  const parsed = URL.parse(url);
  if (parsed?.protocol !== 'file:' || parsed.host !== '' || !/^file:\/\/\/[^?#]+$/.test(url)) {
    return 'must have the form file:///FOLDER or s3://BUCKET/PREFIX';
  }
  return undefined;
}

/** Opens a store by a valid URL. */
export function openStore(url: string, s3: S3Settings): ObjectStore {
  const location = url.startsWith('s3://') && parseS3Location(url);
  if (location && typeof location !== 'string') return new S3Store(new S3Client(s3), location);
  return new FolderStore(new URL(url));
}
