-- What actions of rules take: a batch of an evaluation, their queue and the dead ones of a tenant are limited by it.

-- Generated, so that reading the rules of a tenant does not unpack their actions.
ALTER TABLE rules ADD COLUMN action_bytes int4 NOT NULL GENERATED ALWAYS AS (octet_length(actions::text)) STORED,
  ADD COLUMN action_count int4 NOT NULL GENERATED ALWAYS AS (jsonb_array_length(actions)) STORED;
ALTER TABLE rule_actions
  ADD COLUMN bytes int4 NOT NULL GENERATED ALWAYS AS (octet_length(action::text) + octet_length(event)) STORED;

-- Finds the dead actions of a tenant that are beyond those kept.
CREATE INDEX rule_actions_dead_of_tenant ON rule_actions (tenant_id, dead_at) WHERE dead_at IS NOT NULL;
