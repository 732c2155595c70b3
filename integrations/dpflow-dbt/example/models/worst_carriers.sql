-- Made from a released table, so it costs nothing, however often it is asked.
-- Sums are of raw values: those that readers see are clipped at 0, and their sum is too large.
SELECT carrier, sum(flights_raw_value) AS flights, sum(flights_raw_value * delay) / sum(flights_raw_value) AS delay
FROM {{ ref('delays') }}
GROUP BY carrier
HAVING sum(flights_raw_value) > 0
ORDER BY delay DESC
LIMIT 5
