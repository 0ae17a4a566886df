// Where a session was opened from.

/** The request that opens or uses a session, as far as it is recorded. */
export interface SessionOrigin {
  readonly userAgent: string;
  readonly address: string;
  readonly requestId: string;
}
