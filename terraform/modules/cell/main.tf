# One of our cells: the same machines and the same time-outs in every region. What all regions have in common is changed
# here, once.

module "region" {
  source = "../region"

  name               = var.name
  cidr_block         = var.cidr_block
  availability_zones = var.availability_zones
  elb_log_account_id = var.elb_log_account_id
  certificate_arn    = var.certificate_arn
  client_cidrs       = var.client_cidrs
  operator_cidrs     = var.operator_cidrs
  repository_arns    = var.repository_arns
  public             = true
  peers              = true

  gateway = {
    port    = 8000
    total_s = 900
    drain_s = 30
  }

  pools = {
    head = {
      kind          = "head"
      instance_type = "m7i.2xlarge"
      image_id      = var.cpu_image_id
    }
    gateways = {
      kind          = "gateway"
      instance_type = "c7i.2xlarge"
      image_id      = var.cpu_image_id
    }
    l40s = {
      kind           = "worker"
      instance_type  = "g6e.12xlarge"
      image_id       = var.gpu_image_id
      reservation_id = var.l40s_reservation_id
      disk_gib       = 500
      disk_mib_per_s = 750
    }
    l40s-spot = {
      kind           = "worker"
      instance_type  = "g6e.12xlarge"
      image_id       = var.gpu_image_id
      market         = "spot"
      disk_gib       = 500
      disk_mib_per_s = 750
    }
  }
}
