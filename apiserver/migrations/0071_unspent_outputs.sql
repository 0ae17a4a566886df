-- What the wallet holds is counted every few seconds; spent coins are kept for ever, so that a transaction that is
-- imported again brings none of them back.
CREATE INDEX wallet_outputs_unspent ON wallet_outputs (public_key, state) INCLUDE (satoshis) WHERE state <> 'spent';
