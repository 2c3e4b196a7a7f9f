output "arn" {
  description = "The secret's ARN."
  value       = aws_secretsmanager_secret.cell.arn
}

output "name" {
  description = "The secret's name."
  value       = aws_secretsmanager_secret.cell.name
}
