// A line of the files into which tests record statements (platform/testing/record-statements.ts), for the check of their plans.

/** A statement, and whether row-level security limits it to the rows of a tenant. */
export interface RecordedStatement {
  readonly scope: 'tenant' | 'system';
  readonly text: string;
  /** The file that issued it, from apiserver/src. */
  readonly file: string;
}
