-- When the next device of a rollout with max_per_minute may get its command. next_send_at spaces the commands when they are
-- made; this spaces their delivery, which a pause, a closed window or an offline device delays.
ALTER TABLE ota_rollouts ADD COLUMN next_hand_out_at timestamptz;
