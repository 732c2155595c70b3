{{ config(materialized='dp_release', meta={'dpflow': {'epsilon': '0.5'}}) }}
-- The flights that left late, by carrier and airport.
SELECT origin, carrier, COUNT(*) AS flights, AVG(arr_delay) AS delay
FROM {{ source('private', 'flights').identifier }}
WHERE dep_delay > 0
GROUP BY origin, carrier
