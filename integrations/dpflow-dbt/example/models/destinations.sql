{{ config(materialized='dp_release') }}
-- dp: epsilon=0.5, delta=1e-6, noise=laplace
SELECT dest, COUNT(*) AS flights
FROM {{ source('private', 'flights').identifier }}
GROUP BY dest
