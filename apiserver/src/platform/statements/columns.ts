// Parameters of statements that write several rows.

/** Returns the values of each of these properties over all rows, as parameters for PostgreSQL's `unnest`. */
export const columns = <Row>(rows: readonly Row[], ...names: readonly (keyof Row)[]): unknown[][] =>
  names.map((name) => rows.map((row) => row[name]));
