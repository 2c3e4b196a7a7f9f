output "bucket" {
  description = "The bucket of the models."
  value       = aws_s3_bucket.artifacts.id
}

output "bucket_arn" {
  description = "Its ARN."
  value       = aws_s3_bucket.artifacts.arn
}

output "log_bucket" {
  description = "The bucket of access logs; writable by the load balancer once the policy stands."
  value       = aws_s3_bucket_policy.logs.bucket
}
