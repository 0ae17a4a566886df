// Which tenants have rows that wait for something.

/**
 * SQL, to follow WITH RECURSIVE: `waiting` has the tenants after `after` with rows of a table that meet a condition, in order, and then
 * NULL. Each costs a probe of an index that begins with the tenant, however many rows it has.
 */
export const waitingTenants = (table: string, condition = 'true', after = `''`): string =>
  `waiting AS (
     (SELECT tenant_id FROM ${table} WHERE ${condition} AND tenant_id > ${after} ORDER BY tenant_id LIMIT 1)
     UNION ALL
     SELECT (SELECT tenant_id FROM ${table} WHERE ${condition} AND tenant_id > w.tenant_id ORDER BY tenant_id LIMIT 1)
     FROM waiting w WHERE w.tenant_id IS NOT NULL)`;
