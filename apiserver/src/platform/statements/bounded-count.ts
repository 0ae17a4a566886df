// Counts for metrics, which must cost the same however much waits.

/** The most that a metric counts. */
export const mostCounted = 10_000;

/**
 * SQL: the number of rows of a query, at most {@link mostCounted}. Order the query by an index, or PostgreSQL may look for so many rows
 * in the whole table.
 */
export const boundedCount = (query: string): string =>
  `(SELECT count(*)::int4 FROM (${query} LIMIT ${mostCounted}) AS counted)`;
