-- without a transaction
-- What webhooks did not take is counted by each scrape of the metrics. What is pending has an index by webhook.
CREATE INDEX CONCURRENTLY IF NOT EXISTS webhook_deliveries_dead ON webhook_deliveries (finished_at) WHERE status = 'dead';
