-- Members member-1 to member-100000, each with a wallet of a thousand million points and the grant that put them
-- there, so that `largesse audit` says that the books balance.
--
-- Ids are derived as src/member.rs and src/ledger/post.rs derive them: SHA-256 over each word and its length, and the
-- digest's first sixteen bytes as a version 8 UUID. Were they not the same, every transfer below would be refused.
BEGIN;

CREATE FUNCTION pg_temp.derived_id(VARIADIC words text[]) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT encode(
        set_byte(set_byte(digest, 6, (get_byte(digest, 6) & 15) | 128), 8, (get_byte(digest, 8) & 63) | 128),
        'hex')::uuid
    FROM (
        SELECT substr(sha256(string_agg(length || word, ''::bytea ORDER BY place)), 1, 16)
        FROM (
            SELECT place, int8send(octet_length(text)) AS length, convert_to(text, 'UTF8') AS word
            FROM unnest(words) WITH ORDINALITY AS parts (text, place)
        ) AS words
    ) AS hashed (digest)
$$;

CREATE TEMP TABLE seeds ON COMMIT DROP AS
SELECT name,
       member_id,
       pg_temp.derived_id('wallet', member_id::text, 'PTS') AS wallet_id,
       gen_random_uuid() AS transaction_id,
       date_trunc('milliseconds', now()) AS at,
       1000000000::bigint AS amount
FROM (
    SELECT 'member-' || number AS name, pg_temp.derived_id('member', 'member-' || number) AS member_id
    FROM generate_series(1, 100000) AS number
) AS members;

INSERT INTO members (id, name, created_at) SELECT member_id, name, at FROM seeds;
INSERT INTO wallets (id, member_id, currency, balance, version, opened_at)
    SELECT wallet_id, member_id, 'PTS', amount, 1, at FROM seeds;
INSERT INTO transactions (id, kind, currency, created_at) SELECT transaction_id, 'bonus_grant', 'PTS', at FROM seeds;
INSERT INTO entries (transaction_id, line, house, amount) SELECT transaction_id, 0, 'issuance', -amount FROM seeds;
INSERT INTO entries (transaction_id, line, wallet_id, amount, seq, balance_after)
    SELECT transaction_id, 1, wallet_id, amount, 1, amount FROM seeds;

COMMIT;
VACUUM ANALYZE;
