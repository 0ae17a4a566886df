// The compiled rules of tenants. A revision read in the evaluating transaction decides whether they are current.
import { LRUCache } from 'lru-cache';
import type { Transaction } from '../../platform/database/database.ts';
import { compile, type Compiled } from '../cel/cel-expression.ts';
import { currentRevision, enabledRules, type RuleRow } from '../rules/rule-store.ts';
import type { RuleTiming } from './alarm-decision.ts';

/** A rule that can be evaluated. */
export interface CompiledRule {
  readonly row: RuleRow;
  readonly timing: RuleTiming;
  readonly matches: Compiled;
  readonly clears: Compiled | undefined;
}

interface TenantRules {
  readonly revision: bigint;
  readonly rules: readonly CompiledRule[];
}

/** Tenants whose rules are kept. */
const maxTenants = 1000;

/** Compiles rules once per change. */
export class CompiledRules {
  private readonly tenants = new LRUCache<string, TenantRules>({ max: maxTenants });

  /** Returns the tenant's enabled rules as the transaction sees them. */
  async of(tx: Transaction, tenantId: string): Promise<readonly CompiledRule[]> {
    const revision = await currentRevision(tx, tenantId);
    const known = this.tenants.get(tenantId);
    if (known?.revision === revision) return known.rules;
    // Of the same or a later revision; if later, they are read again next time.
    const rules = (await enabledRules(tx, tenantId)).map(compileRule);
    this.tenants.set(tenantId, { revision, rules });
    return rules;
  }
}

const compileRule = (row: RuleRow): CompiledRule => ({
  row,
  timing: {
    forSeconds: row.for_seconds,
    cooldownSeconds: row.cooldown_seconds,
    hasClearExpression: row.clear_expression !== '',
  },
  matches: compileStored(row.expression),
  clears: row.clear_expression === '' ? undefined : compileStored(row.clear_expression),
});

/** An expression was valid when it was stored; should a later version refuse it, the rule reports that. */
function compileStored(text: string): Compiled {
  const compiled = compile(text);
  if (!('errors' in compiled)) return compiled.evaluate;
  const [{ line, column, message }] = compiled.errors as [(typeof compiled.errors)[number]];
  return () => ({ error: `line ${line}, column ${column}: ${message}` });
}
