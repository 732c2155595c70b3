-- Made from a released table, so it costs nothing, however often it is asked.
SELECT carrier, sum(flights) AS flights, sum(flights * delay) / sum(flights) AS delay
FROM {{ ref('delays') }}
WHERE flights > 0
GROUP BY carrier
ORDER BY delay DESC
LIMIT 5
