// The envelope of everything that Kellet publishes for others: CloudEvents 1.0.

/** What distinguishes an event. */
export interface EventFacts {
  readonly id: string;
  /** The NATS subject. */
  readonly type: string;
  /** The resource. */
  readonly subject: string;
  readonly tenantId: string;
  /** When it happened, in milliseconds of Unix time. */
  readonly at: number;
}

/** Returns an event without its data, which goes last. */
export const cloudEvent = ({ id, type, subject, tenantId, at }: EventFacts) => ({
  specversion: '1.0',
  id,
  source: '/kellet',
  type,
  subject,
  time: new Date(at).toISOString(),
  datacontenttype: 'application/json',
  tenantid: tenantId,
});
