// Locations in S3: s3://BUCKET/KEY.

/** A bucket and a key or a prefix of keys in it. */
export interface S3Location {
  readonly bucket: string;
  /** Without a leading slash; empty for the whole bucket. */
  readonly key: string;
}

const bucketForm = /^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$/;
const maximumKeyBytes = 1024;

/**
 * Parses `s3://BUCKET[/KEY]`. The key is taken as written: nothing in it is decoded, and `?` and `#` belong to it. Returns what is
 * wrong with the text if it is not a location.
 */
export function parseS3Location(text: string): S3Location | string {
  const [, bucket = '', key = ''] = /^s3:\/\/([^/]*)(?:\/([^]*))?$/.exec(text) ?? [];
  if (!bucketForm.test(bucket)) return 'must have the form s3://BUCKET/KEY with the name of a bucket';
  if (Buffer.byteLength(key) > maximumKeyBytes) return `must have a key of at most ${maximumKeyBytes} bytes`;
  if (/\p{Cc}/u.test(key)) return 'must not contain control characters';
  // Some services resolve them, which would lead to another bucket.
  if (key.split('/').some((segment) => segment === '.' || segment === '..')) {
    return 'must not have . or .. as a segment of its key';
  }
  return { bucket, key };
}
